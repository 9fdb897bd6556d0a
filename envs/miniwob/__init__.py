"""MiniWoB: small tasks on web pages: buttons, forms, lists, mail, calendars."""
