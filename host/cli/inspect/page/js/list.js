// A list of any length of which only the rows in view are elements.

import {h} from './dom.js';

// virtualList returns {el, set(items), select(index), refresh()}. fill(row, item, index)
// writes an item into a row element, which is used again and again. choose(item, index) is
// called when the selection moves.
export function virtualList({label, height, make, fill, choose}) {
  const space = h('div.space', {role: 'presentation'});
  const el = h('div.list', {tabindex: 0, role: 'listbox', 'aria-label': label}, space);
  const pool = [];
  let items = [];
  let selected = -1;
  let following = true;

  const row = (i) => {
    while (pool.length <= i) {
      const r = make();
      r.setAttribute('role', 'option');
      r.id = `row-${pool.length}`;
      r.addEventListener('click', () => choose(items[r.index], r.index));
      pool.push(r);
      space.append(r);
    }
    return pool[i];
  };

  function draw() {
    const first = Math.max(0, Math.floor(el.scrollTop / height) - 6);
    const last = Math.min(items.length, Math.ceil((el.scrollTop + el.clientHeight) / height) + 6);
    let active = null;
    for (let i = first; i < last; i++) {
      const r = row(i - first);
      r.hidden = false;
      if (r.index !== i) r.style.transform = `translateY(${i * height}px)`;
      r.index = i;
      r.setAttribute('aria-posinset', i + 1);
      r.setAttribute('aria-setsize', items.length);
      r.setAttribute('aria-selected', i === selected);
      fill(r, items[i], i);
      if (i === selected) active = r;
    }
    for (let i = Math.max(0, last - first); i < pool.length; i++) {
      pool[i].hidden = true;
      pool[i].index = -1;
    }
    if (active) el.setAttribute('aria-activedescendant', active.id);
    else el.removeAttribute('aria-activedescendant');
  }

  let due = false;
  const later = () => {
    if (due) return;
    due = true;
    requestAnimationFrame(() => {
      due = false;
      draw();
    });
  };

  el.addEventListener('scroll', () => {
    following = el.scrollTop + el.clientHeight > el.scrollHeight - height;
    later();
  });
  new ResizeObserver(later).observe(el);

  return {
    el,
    // set shows these items; with follow the end stays in view when it was.
    set(now, follow) {
      items = now;
      space.style.height = items.length * height + 'px';
      if (follow && following && selected < 0) el.scrollTop = el.scrollHeight;
      draw();
    },
    select(index) {
      selected = index;
      if (index >= 0) {
        const top = index * height;
        if (top < el.scrollTop) el.scrollTop = top;
        else if (top + height > el.scrollTop + el.clientHeight) el.scrollTop = top + height - el.clientHeight;
      }
      draw();
    },
    page: () => Math.max(1, Math.floor(el.clientHeight / height) - 1),
  };
}
