// Shows Markdown (CommonMark's usual parts, tables and strikethrough of GitHub's) as DOM nodes. HTML in the text is shown
// as text. Images become links: nothing is loaded. Links lead to http and https only. Time is linear in practice; nesting
// and the length of one paragraph are limited, so that no text can hold the page up.

const MOST_NESTED = 12;         // lists and quotations in each other; deeper ones are shown as text
const LONGEST_INLINE = 10000;   // characters of a paragraph that are searched for links and emphasis
const MOST_COLUMNS = 100;

/// Returns the address if a link may lead there, else null.
function safeUrl(text) {
  try {
    const url = new URL(text);
    return url.protocol === 'http:' || url.protocol === 'https:' ? url.href : null;
  } catch {
    return null;
  }
}

function linkTo(url, children) {
  const link = element('a', {href: url, target: '_blank', rel: 'noopener noreferrer', title: url});
  link.append(...children);
  // A link in a link would be invalid; the outer one counts.
  for (const inner of link.querySelectorAll('a')) inner.replaceWith(...inner.childNodes);
  return link;
}

const PUNCTUATION = /[!-/:-@[-`{-~\p{P}\p{S}]/u;
const AUTO_LINK = /<(https?:\/\/[^\s<>]{1,2000})>/iy;
const BARE_LINK = /https?:\/\/[^\s<>"'`*|\\]{1,2000}/iy;
const DESTINATION = /\(\s*(?:<([^<>\n]*)>|([^\s()<>]*(?:\([^\s()<>]*\)[^\s()<>]*)*))(?:\s+(?:"[^"\n]*"|'[^'\n]*'))?\s*\)/y;

function matchAt(pattern, text, at) {
  pattern.lastIndex = at;
  return pattern.exec(text);
}

/// A run of * _ or ~ may open emphasis, close it, or both (CommonMark 0.31, "left-flanking delimiter run").
function delimiterRun(text, at, character) {
  let end = at;
  while (text[end] === character) ++end;
  const before = at > 0 ? text[at - 1] : ' ', after = end < text.length ? text[end] : ' ';
  const space = (c) => /\s/.test(c), mark = (c) => PUNCTUATION.test(c);
  const left = !space(after) && (!mark(after) || space(before) || mark(before));
  const right = !space(before) && (!mark(before) || space(after) || mark(after));
  const inWord = character === '_';
  return {
    character, count: end - at, open: inWord ? left && (!right || mark(before)) : left,
    close: inWord ? right && (!left || mark(after)) : right,
  };
}

const nodeOf = (token) => token.node ?? document.createTextNode(token.character.repeat(token.count));

/// Turns pairs of delimiter runs into elements, as CommonMark's appendix "An algorithm for parsing nested emphasis".
function nestEmphasis(tokens) {
  const bottom = new Map();  // character → index below which no opener is left
  for (let at = 0; at < tokens.length; ++at) {
    const closer = tokens[at];
    while (closer.close && closer.count > 0) {
      const {character} = closer;
      let from = at - 1;
      const least = bottom.get(character) ?? 0;
      while (from >= least && !(tokens[from].character === character && tokens[from].open && tokens[from].count > 0)) --from;
      if (from < least) {
        if (!closer.open) bottom.set(character, at);
        break;
      }
      const opener = tokens[from];
      if (character === '~' && (opener.count !== 2 || closer.count !== 2)) break;
      const size = opener.count >= 2 && closer.count >= 2 ? 2 : 1;
      const name = character === '~' ? 'del' : size === 2 ? 'strong' : 'em';
      const inner = tokens.slice(from + 1, at).map(nodeOf);
      opener.count -= size;
      closer.count -= size;
      tokens.splice(from + 1, at - from - 1, {node: element(name, {}, ...inner)});
      at = from + 2;
    }
  }
  return tokens.map(nodeOf);
}

/// Returns the nodes of a paragraph's text.
function inlineNodes(text) {
  if (text.length > LONGEST_INLINE) return [document.createTextNode(text)];
  const tokens = [];
  const brackets = [];      // open "[" and "![", as indices of tokens
  const unclosed = new Set();  // lengths of runs of backticks that nothing closes
  let plain = '';
  const flush = () => {
    if (plain) tokens.push({node: document.createTextNode(plain)});
    plain = '';
  };
  const add = (node) => {
    flush();
    tokens.push({node});
  };
  let at = 0;
  while (at < text.length) {
    const c = text[at];
    if (c === '\\' && at + 1 < text.length && (/[!-/:-@[-`{-~]/.test(text[at + 1]) || text[at + 1] === '\n')) {
      if (text[at + 1] === '\n') add(element('br'));
      else plain += text[at + 1];
      at += 2;
    } else if (c === '`') {
      let end = at;
      while (text[end] === '`') ++end;
      const size = end - at;
      const close = unclosed.has(size) ? -1 : findBackticks(text, end, size);
      if (close < 0) {
        unclosed.add(size);
        plain += text.slice(at, end);
        at = end;
      } else {
        let code = text.slice(end, close).replace(/\n/g, ' ');
        if (code.startsWith(' ') && code.endsWith(' ') && code.trim()) code = code.slice(1, -1);
        add(element('code', {}, code));
        at = close + size;
      }
    } else if (c === '*' || c === '_' || c === '~') {
      flush();
      const run = delimiterRun(text, at, c);
      tokens.push(run);
      at += run.count;
    } else if (c === '[' || (c === '!' && text[at + 1] === '[')) {
      flush();
      brackets.push(tokens.length);
      const mark = c === '!' ? '![' : '[';
      tokens.push({node: document.createTextNode(mark), image: c === '!'});
      at += mark.length;
    } else if (c === ']' && brackets.length > 0) {
      flush();
      const from = brackets.pop();
      const target = matchAt(DESTINATION, text, at + 1);
      const url = target && safeUrl(target[1] ?? target[2]);
      if (url) {
        const image = tokens[from].image;
        const inner = nestEmphasis(tokens.splice(from).slice(1));
        tokens.push({node: linkTo(url, image ? ['image: ', ...inner] : inner)});
        if (!image) brackets.length = 0;
        at += 1 + target[0].length;
      } else {
        plain += ']';
        ++at;
      }
    } else if (c === '<' && matchAt(AUTO_LINK, text, at)) {
      const found = matchAt(AUTO_LINK, text, at);
      const url = safeUrl(found[1]);
      add(url ? linkTo(url, [found[1]]) : document.createTextNode(found[0]));
      at += found[0].length;
    } else if ((c === 'h' || c === 'H') && !/\w/.test(text[at - 1] ?? ' ') && matchAt(BARE_LINK, text, at)) {
      let address = matchAt(BARE_LINK, text, at)[0].replace(/[.,:;!?\]]{1,20}$/, '');
      if (address.endsWith(')') && !address.includes('(')) address = address.slice(0, -1);
      const url = safeUrl(address);
      if (url) add(linkTo(url, [address]));
      else plain += address;
      at += address.length;
    } else if (c === '\n') {
      plain = plain.replace(/ {1,8}$/, '');
      add(element('br'));
      ++at;
    } else {
      plain += c;
      ++at;
    }
  }
  flush();
  return nestEmphasis(tokens);
}

/// Returns where a run of exactly `size` backticks begins, or -1.
function findBackticks(text, from, size) {
  for (let at = text.indexOf('`', from); at >= 0; at = text.indexOf('`', at)) {
    let end = at;
    while (text[end] === '`') ++end;
    if (end - at === size) return at;
    at = end;
  }
  return -1;
}

const FENCE = /^ {0,3}(`{3,}|~{3,})[ \t]*([^`]*)$/;
const RULE = /^ {0,3}([-*_])(?:[ \t]*\1){2,}[ \t]*$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]|$)/;
const QUOTATION = /^ {0,3}> ?/;
const LIST_ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])(?:([ \t]+)|$)/;
const isBlank = (line) => line.trim() === '';
const indentOf = (line) => line.length - line.trimStart().length;

function isTableAt(lines, at) {
  return at + 1 < lines.length && lines[at].includes('|') && lines[at + 1].includes('|') &&
      /^[ \t|:-]+$/.test(lines[at + 1]) && lines[at + 1].includes('-');
}

function beginsBlock(lines, at) {
  const line = lines[at];
  return FENCE.test(line) || RULE.test(line) || HEADING.test(line) || QUOTATION.test(line) || LIST_ITEM.test(line) ||
      isTableAt(lines, at);
}

/// Returns the blocks of these lines in order: {from, to, build}. `build` makes the block's element.
function blocksOf(lines, depth) {
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    if (isBlank(lines[at])) {
      ++at;
      continue;
    }
    const block = depth > MOST_NESTED ? paragraph(lines, at, lines.length) : blockAt(lines, at, depth);
    blocks.push({from: at, ...block});
    at = block.to;
  }
  return blocks;
}

function blockAt(lines, at, depth) {
  const line = lines[at];
  const fence = FENCE.exec(line);
  if (fence) return fencedCode(lines, at, fence);
  if (indentOf(line) >= 4) return indentedCode(lines, at);
  const heading = HEADING.exec(line);
  if (heading) {
    const text = line.trim().slice(heading[1].length).trim().replace(/(^|[ \t])#{1,100}$/, '');
    // The page has h1 and h2, and a message's author is an h3.
    const name = `h${Math.min(6, heading[1].length + 3)}`;
    return {to: at + 1, build: () => element(name, {dir: 'auto'}, ...inlineNodes(text))};
  }
  if (RULE.test(line)) return {to: at + 1, build: () => element('hr')};
  if (QUOTATION.test(line)) {
    let to = at;
    while (to < lines.length && QUOTATION.test(lines[to])) ++to;
    const inner = lines.slice(at, to).map((quoted) => quoted.replace(QUOTATION, ''));
    return {to, build: () => element('blockquote', {}, ...build(inner, depth + 1))};
  }
  if (LIST_ITEM.test(line)) return list(lines, at, depth);
  if (isTableAt(lines, at)) return table(lines, at);
  let to = at + 1;
  while (to < lines.length && !isBlank(lines[to]) && !beginsBlock(lines, to)) ++to;
  return paragraph(lines, at, to);
}

const build = (lines, depth) => blocksOf(lines, depth).map((block) => block.build());

function paragraph(lines, from, to) {
  const text = lines.slice(from, to).map((line) => line.trimStart()).join('\n').trimEnd();
  return {to, build: () => element('p', {dir: 'auto'}, ...inlineNodes(text))};
}

function codeBlock(text, language) {
  const code = element('code', {}, text);
  const copy = button('Copy', 'Copy the code', () => copyText(text, copy));
  return element('div', {className: 'block', dir: 'ltr'},
      element('div', {className: 'bar'}, element('span', {}, language.slice(0, 40)), copy),
      element('pre', {tabIndex: 0, role: 'group', 'aria-label': 'Code'}, code));
}

function fencedCode(lines, at, fence) {
  const indent = indentOf(lines[at]);
  const closes = (line) => {
    const text = line.trim();
    return indentOf(line) < 4 && text.length >= fence[1].length && text === fence[1][0].repeat(text.length);
  };
  let to = at + 1;
  while (to < lines.length && !closes(lines[to])) ++to;
  const end = to === lines.length && to > at + 1 && lines[to - 1] === '' ? to - 1 : to;  // the text ends in the block
  const code = lines.slice(at + 1, end).map((line) => line.slice(Math.min(indent, indentOf(line)))).join('\n');
  const language = fence[2].trim().split(/\s/)[0];
  return {to: Math.min(to + 1, lines.length), build: () => codeBlock(code, language)};
}

function indentedCode(lines, at) {
  let to = at;
  while (to < lines.length && (isBlank(lines[to]) || indentOf(lines[to]) >= 4)) ++to;
  while (isBlank(lines[to - 1])) --to;
  const code = lines.slice(at, to).map((line) => line.slice(Math.min(4, indentOf(line)))).join('\n');
  return {to, build: () => codeBlock(code, '')};
}

function list(lines, at, depth) {
  const first = LIST_ITEM.exec(lines[at]);
  const ordered = /\d/.test(first[2]);
  const kind = first[2].at(-1);
  const items = [];
  let to = at;
  while (to < lines.length) {
    const mark = LIST_ITEM.exec(lines[to]);
    if (!mark || mark[2].at(-1) !== kind || /\d/.test(mark[2]) !== ordered || RULE.test(lines[to])) break;
    const space = mark[3] && mark[3].length <= 4 ? mark[3].length : 1;
    const width = mark[1].length + mark[2].length + space;
    const item = [lines[to].slice(width)];
    ++to;
    while (to < lines.length) {
      const line = lines[to];
      const inside = isBlank(line) || indentOf(line) >= width;
      // A line of a paragraph may go on without indentation.
      const lazy = !isBlank(line) && !isBlank(lines[to - 1]) && !beginsBlock(lines, to);
      if (!inside && !lazy) break;
      item.push(line.slice(Math.min(width, indentOf(line))));
      ++to;
    }
    items.push(item);
  }
  const start = ordered ? parseInt(first[2], 10) : 1;
  return {
    to,
    build: () => {
      const made = element(ordered ? 'ol' : 'ul', ordered && start !== 1 ? {start} : {});
      for (const item of items) made.append(listItem(item, depth));
      return made;
    },
  };
}

function listItem(lines, depth) {
  const made = element('li', {dir: 'auto'});
  const task = /^\[([ xX])\] /.exec(lines[0]);
  const inner = build(task ? [lines[0].slice(4), ...lines.slice(1)] : lines, depth + 1);
  if (task) made.append(task[1] === ' ' ? '☐ ' : '☑ ');
  // A single paragraph needs no distance.
  if (inner.length > 0 && inner[0].tagName === 'P') made.append(...inner.shift().childNodes);
  made.append(...inner);
  return made;
}

function cellsOf(line) {
  const cells = line.trim().replace(/^\|/, '').match(/(?:\\.|[^|\\]|\\$)+|\|(?=\|)/g) ?? [];
  return cells.slice(0, MOST_COLUMNS).map((cell) => (cell === '|' ? '' : cell.trim().replace(/\\\|/g, '|')));
}

function table(lines, at) {
  let to = at + 2;
  while (to < lines.length && !isBlank(lines[to]) && lines[to].includes('|')) ++to;
  const heads = cellsOf(lines[at]);
  const rows = lines.slice(at + 2, to).map(cellsOf);
  const sides = cellsOf(lines[at + 1]).map((rule) => (rule.endsWith(':') ? (rule.startsWith(':') ? 'center' : 'right') : ''));
  return {
    to,
    build: () => {
      const cell = (name, text, i) => {
        const made = element(name, {dir: 'auto'}, ...inlineNodes(text));
        made.style.textAlign = sides[i] ?? '';
        return made;
      };
      const row = (name, cells) => element('tr', {}, ...heads.map((_, i) => cell(name, cells[i] ?? '', i)));
      const made = element('table', {}, element('thead', {}, row('th', heads)),
          element('tbody', {}, ...rows.map((cells) => row('td', cells))));
      return element('div', {className: 'scroller', tabIndex: 0, role: 'group', 'aria-label': 'Table'}, made);
    },
  };
}

/// Shows a text that grows. Blocks that did not change keep their elements, and with them the user's selection.
class MarkdownView {
  constructor(container) {
    this.container = container;
    this.sources = [];
  }

  update(text) {
    const lines = text.replace(/\r\n?/g, '\n').replace(/\t/g, '    ').split('\n');
    const blocks = blocksOf(lines, 0);
    const sources = blocks.map((block) => lines.slice(block.from, block.to).join('\n'));
    let same = 0;
    while (same < sources.length && sources[same] === this.sources[same]) ++same;
    while (this.container.childNodes.length > same) this.container.lastChild.remove();
    for (const block of blocks.slice(same)) this.container.append(block.build());
    this.sources = sources;
  }
}
