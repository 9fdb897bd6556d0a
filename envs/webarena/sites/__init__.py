"""Four small sites, served locally: a shop, a forum, a code host and the shop's content management."""
