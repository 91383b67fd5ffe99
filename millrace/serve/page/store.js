// Conversations, and where they stay: one item of the browser's local storage for each. A conversation is a tree of
// messages: editing a message or asking for another answer adds a sibling. `leaf` is the last message on the screen.
//
//   {id, title, named, created, updated, model, settings, leaf, messages: [{id, parent, role, content, …}]}
//
// A parent stands before its children. Exported files have the same form (docs/guide/serve.md).

const ITEM = 'millrace-chat.conversation.';
const DEFAULTS = 'millrace-chat.defaults';
const EXPORT_FORMAT = 'millrace-chat';
const LONGEST_TEXT = 4 * 1024 * 1024;
const MOST_MESSAGES = 20000;
const LARGEST_IMPORT = 64 * 1024 * 1024;

const newId = () => Array.from(crypto.getRandomValues(new Uint8Array(8)), (byte) => byte.toString(16).padStart(2, '0')).join('');

function newConversation(settings, model) {
  const now = Date.now();
  return {id: newId(), title: 'New conversation', named: false, created: now, updated: now, model, settings: structuredClone(settings),
    leaf: '', messages: []};
}

const messageOf = (conversation, id) => conversation.messages.find((message) => message.id === id);
const siblingsOf = (conversation, message) => conversation.messages.filter((other) => other.parent === message.parent);

/// Returns the messages from the first one to `leaf`.
function pathTo(conversation, leaf = conversation.leaf) {
  const byName = new Map(conversation.messages.map((message) => [message.id, message]));
  const path = [];
  for (let at = byName.get(leaf); at; at = byName.get(at.parent)) path.unshift(at);
  return path;
}

/// Returns the newest message below `message`, or itself.
function newestLeaf(conversation, message) {
  let leaf = message;
  for (const other of conversation.messages) {
    if (other.parent === leaf.id) leaf = other;
  }
  return leaf.id;
}

function addMessage(conversation, parent, role, content) {
  const message = {id: newId(), parent, role, content, created: Date.now()};
  conversation.messages.push(message);
  conversation.leaf = message.id;
  conversation.updated = message.created;
  return message;
}

function titleFrom(text) {
  const line = text.trim().split('\n')[0].replace(/\s+/g, ' ');
  return [...line].length > 60 ? `${[...line].slice(0, 59).join('')}…` : line || 'New conversation';
}

class ImportError extends Error {}

const textOr = (value, fallback, most) => (typeof value === 'string' ? value.slice(0, most) : fallback);
const timeOr = (value, fallback) => (Number.isFinite(value) && value >= 0 && value < 1e14 ? value : fallback);

function checkedSettings(value) {
  const settings = {system: textOr(value?.system, '', LONGEST_TEXT), form: value?.form === 'text' ? 'text' : 'chat', stop: []};
  if (Array.isArray(value?.stop)) settings.stop = value.stop.filter((text) => typeof text === 'string' && text).slice(0, 16);
  for (const name of SAMPLING) {
    if (Number.isFinite(value?.[name])) settings[name] = value[name];
  }
  return settings;
}

/// Returns a conversation made of a value from outside, with its known members only. Throws ImportError.
function checkedConversation(value) {
  if (!Array.isArray(value?.messages) || value.messages.length > MOST_MESSAGES) throw new ImportError('a conversation has no messages');
  const now = Date.now();
  const seen = new Set(['']);
  const messages = value.messages.map((given) => {
    const bad = typeof given?.id !== 'string' || given.id.length > 64 || seen.has(given.id) || !seen.has(given.parent) ||
        !['user', 'assistant'].includes(given.role) || typeof given.content !== 'string' || given.content.length > LONGEST_TEXT;
    if (bad) throw new ImportError('a message has no known form');
    seen.add(given.id);
    const message = {id: given.id, parent: given.parent, role: given.role, content: given.content, created: timeOr(given.created, now)};
    for (const name of ['model', 'finish', 'problem']) {
      if (typeof given[name] === 'string') message[name] = given[name].slice(0, 2000);
    }
    if (Number.isFinite(given.usage?.prompt) && Number.isFinite(given.usage?.completion)) {
      message.usage = {prompt: given.usage.prompt, completion: given.usage.completion};
      message.firstMs = timeOr(given.firstMs, 0);
      message.totalMs = timeOr(given.totalMs, 0);
    }
    return message;
  });
  const leaf = value.leaf !== '' && seen.has(value.leaf) ? value.leaf : messages.at(-1)?.id ?? '';
  return {id: typeof value.id === 'string' && /^[0-9a-f]{16}$/.test(value.id) ? value.id : newId(),
    title: textOr(value.title, 'Conversation', 200), named: value.named === true, created: timeOr(value.created, now),
    updated: timeOr(value.updated, now), model: textOr(value.model, '', 500), settings: checkedSettings(value.settings), leaf, messages};
}

/// The conversations of this browser. Without storage (switched off, or full) they live as long as the tab.
class Store {
  /// `onProblem` is told a sentence when something could not be stored.
  constructor(onProblem) {
    this.onProblem = onProblem;
    this.conversations = new Map();
    this.failed = false;
    this.load();
  }

  load() {
    const found = new Map();
    try {
      for (let i = 0; i < localStorage.length; ++i) {
        const key = localStorage.key(i);
        if (!key.startsWith(ITEM)) continue;
        const conversation = this.parse(localStorage.getItem(key));
        if (conversation) found.set(conversation.id, conversation);
      }
      this.conversations = found;
    } catch {
      this.failed = true;
      this.onProblem('This browser lets the page store nothing. Conversations are lost when the tab is closed.');
    }
  }

  parse(text) {
    try {
      return checkedConversation(JSON.parse(text));
    } catch {
      return null;  // written by a later version of the page, or by hand: left alone
    }
  }

  /// The newest first.
  list() {
    return [...this.conversations.values()].sort((a, b) => b.updated - a.updated);
  }

  save(conversation) {
    this.conversations.set(conversation.id, conversation);
    try {
      localStorage.setItem(ITEM + conversation.id, JSON.stringify(conversation));
      this.failed = false;
    } catch {
      if (!this.failed) {
        this.onProblem('This browser has no room for more. What is new is lost when the tab is closed: export it, and delete old conversations.');
      }
      this.failed = true;
    }
  }

  remove(id) {
    this.conversations.delete(id);
    try {
      localStorage.removeItem(ITEM + id);
    } catch {
      // Nothing was stored.
    }
  }

  defaults() {
    try {
      const value = JSON.parse(localStorage.getItem(DEFAULTS));
      return {settings: checkedSettings(value?.settings), model: textOr(value?.model, '', 500)};
    } catch {
      return {settings: checkedSettings({}), model: ''};
    }
  }

  saveDefaults(settings, model) {
    try {
      localStorage.setItem(DEFAULTS, JSON.stringify({settings, model}));
    } catch {
      // save() tells when the storage is full; these can be entered again.
    }
  }

  exported(conversations) {
    return JSON.stringify({format: EXPORT_FORMAT, version: 1, conversations}, null, 1);
  }

  /// Adds the conversations of an exported file beside those that are here. Returns them. Throws ImportError, and then has
  /// added nothing.
  importText(text) {
    let value;
    try {
      value = JSON.parse(text);
    } catch {
      throw new ImportError('it is no JSON');
    }
    if (value?.format !== EXPORT_FORMAT || !Array.isArray(value.conversations)) throw new ImportError('it is no export of this page');
    if (value.version !== 1) throw new ImportError(`its version is ${String(value.version).slice(0, 20)}; this page reads version 1`);
    const added = value.conversations.map(checkedConversation);
    for (const conversation of added) {
      if (this.conversations.has(conversation.id)) conversation.id = newId();
      this.save(conversation);
    }
    return added;
  }
}

/// Returns the messages on the screen as Markdown.
function asMarkdown(conversation) {
  const parts = [`# ${conversation.title}`];
  if (conversation.settings.system) parts.push('## System', conversation.settings.system);
  for (const message of pathTo(conversation)) {
    parts.push(message.role === 'user' ? '## You' : `## ${message.model || 'Model'}`, message.content);
  }
  return `${parts.join('\n\n')}\n`;
}
