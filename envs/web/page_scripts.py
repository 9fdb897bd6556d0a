"""The JavaScript that a tab runs in a page."""

# Counts what a page's scripts have asked for and not got yet.
COUNT_REQUESTS = """
(() => {
  let pending = 0;
  const done = () => { pending -= 1; };
  const fetch = window.fetch, send = XMLHttpRequest.prototype.send;
  window.fetch = function (...args) { pending += 1; return fetch.apply(this, args).finally(done); };
  XMLHttpRequest.prototype.send = function (...args) {
    pending += 1;
    this.addEventListener('loadend', done, {once: true});
    try { return send.apply(this, args); } catch (error) { done(); throw error; }
  };
  Object.defineProperty(window, '__pendingRequests', {get: () => pending, enumerable: false});
})();
"""
CLICK = "function () { (this.nodeType === 1 ? this : this.parentElement).click(); }"
CHOOSE = """function (label) {
  const option = label === null ? this : [...this.options].find(o => o.label.trim() === label.trim());
  if (!option) return false;
  const select = option.closest('select');
  option.selected = select && select.multiple && label === null ? !option.selected : true;
  for (const type of ['input', 'change']) (select || option).dispatchEvent(new Event(type, {bubbles: true}));
  return true;
}"""
# Selects what a field holds, so that typing replaces it; says what kind of field it is.
SELECT_ALL = """function () {
  const element = this.nodeType === 1 ? this : this.parentElement;
  element.focus();
  if (element.tagName === 'SELECT') return 'select';
  if (element.tagName === 'INPUT' && !element.readOnly && !element.disabled &&
      ['date', 'time', 'datetime-local', 'month', 'week', 'color', 'range'].includes(element.type)) return 'value';
  if (element.select) { element.select(); return 'text'; }
  if (element.isContentEditable) { getSelection().selectAllChildren(element); return 'text'; }
  return document.activeElement === element ? 'other' : 'none';
}"""
SET_VALUE = """function (value) {
  Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, 'value').set.call(this, value);
  for (const type of ['input', 'change']) this.dispatchEvent(new Event(type, {bubbles: true}));
  return this.value === value;
}"""
SCROLL = """([direction, limit]) => {
  let scroller = document.elementFromPoint(innerWidth / 2, innerHeight / 2);
  while (scroller && !(scroller.scrollHeight > scroller.clientHeight + 1
                       && /auto|scroll/.test(getComputedStyle(scroller).overflowY))) scroller = scroller.parentElement;
  scroller = scroller || document.scrollingElement;
  const height = Math.min(scroller.clientHeight, innerHeight);
  scroller.scrollBy({top: direction * (limit > 0 ? Math.min(limit, height) : height), behavior: 'instant'});
  return scroller.scrollTop > 0;
}"""
# Ends when those who listen to scrolling have been called, just before a frame is drawn; some pages are not drawn.
NEXT_FRAME = "() => new Promise(done => { requestAnimationFrame(done); setTimeout(done, 100); })"
# Waits for the images of elements, also those that style sheets put in their place; without them an icon has no size.
LOAD_IMAGES = """async () => {
  const styled = [...document.querySelectorAll('*')].flatMap(element => {
    const found = /^url\\("(.*?)"\\)/.exec(getComputedStyle(element).content);
    return found ? [found[1]] : [];
  });
  const images = [...document.images].filter(image => image.loading !== 'lazy');
  images.push(...[...new Set(styled)].map(url => Object.assign(new Image(), {src: url})));
  await Promise.all(images.filter(image => !image.complete).map(image => new Promise(done => {
    for (const event of ['load', 'error']) image.addEventListener(event, done, {once: true});
  })));
}"""
