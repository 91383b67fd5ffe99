// The page: joins conversations, messages and requests with the controls.

const THEME = 'millrace-chat.theme';
const SAVE_EVERY_MS = 1000;  // while an answer comes

const store = new Store(showNotice);
const state = {
  current: null,      // the conversation on the screen
  views: new Map(),   // id of a message → its MessageView
  runs: new Map(),    // id of a conversation → {controller, message}
  models: [],
};

// ---- Models and the key ----

const keyDialog = byId('key-dialog');
let keyAnswers = [];  // who waits for the dialog

/// Asks for the key. Resolves to whether one was entered.
function askKey() {
  const wrong = sessionKey() !== '';
  byId('key-error').textContent = wrong ? 'The server does not know the key that was sent.' : '';
  byId('key-error').hidden = !wrong;
  if (!keyDialog.open) {
    byId('key').value = '';
    keyDialog.showModal();
    byId('key').focus();
  }
  return new Promise((resolve) => keyAnswers.push(resolve));
}

function endKeyDialog(key) {
  if (key) {
    try {
      setSessionKey(key);
    } catch {
      showNotice('This browser lets the page store nothing, so it cannot keep the key.');
    }
  }
  keyDialog.close();
}

async function loadModels() {
  const select = byId('model');
  for (;;) {
    try {
      state.models = await listModels();
      break;
    } catch (error) {
      if (error.status === 401 && await askKey()) continue;
      state.models = [];
      showNotice(`The list of models could not be read: ${error.message}`);
      break;
    }
  }
  const label = (model) => model.parent ? `${model.id} (adapter of ${model.parent})` : model.id;
  select.replaceChildren(...state.models.map((model) => element('option', {value: model.id}, label(model))));
  select.disabled = state.models.length === 0;
  chooseModel();
}

function chooseModel() {
  const wanted = state.current?.model || store.defaults().model;
  const found = state.models.find((model) => model.id === wanted) ?? state.models[0];
  if (found) byId('model').value = found.id;
}

/// A server without a list still has its default model: the request then names none.
const chosenModel = () => state.models.find((model) => model.id === byId('model').value) ?? {id: undefined, context: 0};

// ---- Drawing ----

function drawList() {
  const list = store.list();
  byId('no-conversations').hidden = list.length > 0;
  byId('export-all').disabled = list.length === 0;
  byId('conversations').replaceChildren(...list.map((conversation) => {
    const current = conversation === state.current;
    const open = button(conversation.title, conversation.title, () => show(conversation, true), 'open');
    if (current) open.setAttribute('aria-current', 'true');
    return element('li', {className: current ? 'current' : ''}, open,
        button('✎', `Rename ${conversation.title}`, () => askRename(conversation)),
        button('✕', `Delete ${conversation.title}`, () => askDelete(conversation)));
  }));
}

const isAtBottom = () => {
  const box = byId('scroll');
  return box.scrollHeight - box.scrollTop - box.clientHeight < 40;
};
const toBottom = () => byId('scroll').scrollTo(0, byId('scroll').scrollHeight);

function drawMessages() {
  const path = state.current ? pathTo(state.current) : [];
  const running = state.current && state.runs.get(state.current.id);
  state.views = new Map(path.map((message) => [message.id, new MessageView(state.current, message, actions)]));
  byId('messages').replaceChildren(...[...state.views.values()].map((view) => view.node));
  if (running) state.views.get(running.message.id)?.update(true);
  byId('empty').hidden = path.length > 0;
  drawState();
}

function drawState() {
  const running = Boolean(state.current && state.runs.has(state.current.id));
  byId('send').hidden = running;
  byId('stop').hidden = !running;
  byId('title').textContent = state.current?.title ?? 'New conversation';
  document.title = `${state.current?.title ?? 'Chat'} – Millrace`;
  byId('export').disabled = !state.current;
}

function show(conversation, chosen = false) {
  state.current = conversation;
  drawList();
  drawMessages();
  chooseModel();
  toBottom();
  if (chosen) {
    closeSidebar();
    // On a phone the focus on the message would open the keyboard.
    (matchMedia('(max-width: 760px)').matches ? byId('open-sidebar') : byId('prompt')).focus();
  }
}

// ---- Answers ----

/// Returns the conversation on the screen; makes one if there is none.
function currentConversation() {
  if (!state.current) {
    const {settings, model} = store.defaults();
    state.current = newConversation(settings, model);
  }
  return state.current;
}

/// Returns the messages of a request. Chat templates want roles in turn: messages without an answer are joined.
function requestMessages(path) {
  const messages = [];
  for (const {role, content} of path) {
    if (!content) continue;
    if (messages.at(-1)?.role === role) messages.at(-1).content += `\n\n${content}`;
    else messages.push({role, content});
  }
  return messages;
}

/// Asks for an answer to the message `parent`. Its message is added to the conversation.
async function answer(conversation, parent) {
  if (state.runs.has(conversation.id)) return;
  const model = chosenModel();
  const history = requestMessages(pathTo(conversation, parent.id));
  const message = addMessage(conversation, parent.id, 'assistant', '');
  message.model = model.id ?? '';
  conversation.model = message.model;
  const run = {controller: new AbortController(), message};
  state.runs.set(conversation.id, run);
  store.save(conversation);
  show(conversation);
  announce('The model answers.');

  let frame = 0, saved = performance.now();
  const draw = () => {
    frame = 0;
    const follow = isAtBottom();
    state.views.get(message.id)?.update(state.runs.get(conversation.id) === run);
    if (follow && state.current === conversation) toBottom();
    if (performance.now() - saved > SAVE_EVERY_MS) {
      saved = performance.now();
      store.save(conversation);
    }
  };
  let refused = false;
  try {
    const done = await streamAnswer(answerRequest(model, conversation.settings, history), run.controller.signal, (piece) => {
      message.content += piece;
      frame ||= requestAnimationFrame(draw);
    });
    Object.assign(message, {finish: done.finish, firstMs: done.firstMs, totalMs: done.totalMs});
    if (done.usage) message.usage = done.usage;
    announce(`The answer is complete. ${message.content.slice(0, 500)}`);
  } catch (error) {
    if (error.name === 'AbortError') {
      message.finish = 'stopped';
      announce('The answer was stopped.');
    } else if (error instanceof RequestError) {
      message.problem = error.message;
      message.status = error.status;
      refused = error.status === 401;
    } else {
      throw error;
    }
  } finally {
    cancelAnimationFrame(frame);
    state.runs.delete(conversation.id);
    // It may have been deleted meanwhile.
    if (store.conversations.has(conversation.id)) store.save(conversation);
    draw();
    if (state.current === conversation) drawState();
    drawList();
  }
  if (refused) await actions.enterKey(message);
}

/// Takes a message that failed before its first word out of the conversation.
function dropFailed(conversation, message) {
  if (message.content || conversation.messages.some((other) => other.parent === message.id)) return;
  conversation.messages = conversation.messages.filter((other) => other !== message);
}

const actions = {
  regenerate(message) {
    const conversation = state.current;
    if (state.runs.has(conversation.id)) return;
    const parent = messageOf(conversation, message.parent);
    dropFailed(conversation, message);
    byId('prompt').focus();
    answer(conversation, parent);
  },
  /// Returns whether the message was sent.
  edit(message, text) {
    const conversation = state.current;
    if (state.runs.has(conversation.id)) return false;
    if (!conversation.named && message.parent === '') conversation.title = titleFrom(text);
    byId('prompt').focus();
    answer(conversation, addMessage(conversation, message.parent, 'user', text));
    return true;
  },
  showBranch(message, pressed) {
    const conversation = state.current;
    if (state.runs.has(conversation.id)) return;
    conversation.leaf = newestLeaf(conversation, message);
    store.save(conversation);
    drawMessages();
    // The buttons are new: the focus stays on the one that was pressed, or on the message.
    const again = [...state.views.get(message.id).node.querySelectorAll('.tools button')].filter((made) => '‹›'.includes(made.textContent) && !made.disabled);
    (again.find((made) => made.textContent === pressed) ?? again[0])?.focus();
  },
  async enterKey(message) {
    const conversation = state.current;
    if (!await askKey()) return;
    if (state.models.length === 0) await loadModels();
    if (state.current === conversation && state.views.has(message.id)) this.regenerate(message);
  },
  plainText(message) {
    state.current.settings.form = 'text';
    store.saveDefaults(state.current.settings, state.current.model);
    this.regenerate(message);
  },
};

function stopAnswer() {
  if (state.current) state.runs.get(state.current.id)?.controller.abort();
  byId('prompt').focus();
}

function fitPrompt() {
  const area = byId('prompt');
  area.style.height = 'auto';
  area.style.height = `${area.scrollHeight + 2}px`;
}

function sendPrompt() {
  const area = byId('prompt');
  const conversation = currentConversation();
  if (!area.value.trim() || state.runs.has(conversation.id)) return;
  if (!conversation.named && conversation.messages.length === 0) conversation.title = titleFrom(area.value);
  const message = addMessage(conversation, conversation.leaf, 'user', area.value);
  area.value = '';
  fitPrompt();
  area.focus();
  answer(conversation, message);
}

// ---- Dialogs ----

function askRename(conversation) {
  byId('rename-text').value = conversation.title;
  byId('rename-dialog').conversation = conversation;
  byId('rename-dialog').showModal();
  byId('rename-text').select();
}

function rename() {
  const {conversation} = byId('rename-dialog');
  const title = byId('rename-text').value.trim();
  byId('rename-dialog').close();
  if (!title) return;
  conversation.title = title;
  conversation.named = true;
  store.save(conversation);
  drawList();
  drawState();
}

function askDelete(conversation) {
  byId('delete-text').textContent = `“${conversation.title}” is removed from this browser for good.`;
  byId('delete-dialog').conversation = conversation;
  byId('delete-dialog').showModal();
  byId('delete-cancel').focus();
}

function deleteConversation() {
  const {conversation} = byId('delete-dialog');
  byId('delete-dialog').close();
  state.runs.get(conversation.id)?.controller.abort();
  store.remove(conversation.id);
  if (state.current === conversation) show(store.list()[0] ?? null);
  else drawList();
  byId('new-chat').focus();
}

function openSettings() {
  const {settings} = state.current ?? store.defaults();
  byId('system').value = settings.system;
  byId('form').value = settings.form;
  for (const name of SAMPLING) byId(name).value = settings[name] ?? '';
  byId('stop-texts').value = settings.stop.join('\n');
  byId('settings-error').hidden = true;
  byId('forget-key').hidden = sessionKey() === '';
  byId('settings-dialog').showModal();
}

function saveSettings() {
  const settings = {system: byId('system').value, form: byId('form').value, stop: byId('stop-texts').value.split('\n').filter(Boolean)};
  for (const name of SAMPLING) {
    const input = byId(name);
    if (!input.checkValidity()) {
      byId('settings-error').textContent = `${input.parentElement.firstChild.textContent.trim()}: ${input.validationMessage}`;
      byId('settings-error').hidden = false;
      input.focus();
      return;
    }
    if (input.value !== '') settings[name] = input.valueAsNumber;
  }
  if (state.current) {
    state.current.settings = settings;
    store.save(state.current);
  }
  store.saveDefaults(settings, byId('model').value);
  byId('settings-dialog').close();
}

const fileName = (conversation, end) => `${conversation.title.replace(/[^\p{L}\p{N}]+/gu, '-').slice(0, 60).replace(/^-|-$/g, '') || 'conversation'}.${end}`;

function exportCurrent(markdown) {
  const conversation = state.current;
  byId('export-dialog').close();
  if (markdown) download(fileName(conversation, 'md'), 'text/markdown', asMarkdown(conversation));
  else download(fileName(conversation, 'json'), 'application/json', store.exported([conversation]));
}

async function importFile() {
  const input = byId('import-file');
  const file = input.files[0];
  if (!file) return;
  try {
    if (file.size > LARGEST_IMPORT) throw new ImportError('it is larger than 64 MiB');
    const added = store.importText(await file.text());
    announce(`Conversations imported: ${added.length}`);
    show(added[0] ?? state.current, true);
  } catch (error) {
    if (!(error instanceof ImportError)) throw error;
    showNotice(`${file.name} cannot be imported: ${error.message}.`);
  } finally {
    input.value = '';
  }
}

// ---- Appearance and sidebar ----

function applyTheme(theme) {
  if (theme === 'light' || theme === 'dark') document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
  byId('theme').value = document.documentElement.dataset.theme ?? 'auto';
}

function openSidebar() {
  document.body.classList.add('sidebar-open');
  byId('shade').hidden = false;
  byId('open-sidebar').setAttribute('aria-expanded', 'true');
  byId('close-sidebar').focus();
}

function closeSidebar() {
  document.body.classList.remove('sidebar-open');
  byId('shade').hidden = true;
  byId('open-sidebar').setAttribute('aria-expanded', 'false');
}

function onClick(id, action) {
  byId(id).addEventListener('click', action);
}

/// Without preventDefault, the key would also press the button that has the focus once the dialog is closed.
function onEnter(id, action) {
  byId(id).addEventListener('keydown', (event) => {
    if (event.key !== 'Enter' || event.isComposing) return;
    event.preventDefault();
    action();
  });
}

function start() {
  try {
    applyTheme(localStorage.getItem(THEME));
  } catch {
    // The store has told that nothing is stored here.
  }
  byId('theme').addEventListener('change', (event) => {
    applyTheme(event.target.value);
    try {
      localStorage.setItem(THEME, event.target.value);
    } catch {
      // It holds until the tab is closed.
    }
  });
  onClick('new-chat', () => show(null, true));
  onClick('open-sidebar', openSidebar);
  for (const id of ['close-sidebar', 'shade']) {
    onClick(id, () => {
      closeSidebar();
      byId('open-sidebar').focus();
    });
  }
  onClick('notice-close', () => { byId('notice').hidden = true; });
  onClick('settings', openSettings);
  onClick('settings-save', saveSettings);
  onClick('forget-key', () => {
    setSessionKey('');
    byId('forget-key').hidden = true;
  });
  onClick('rename-save', rename);
  onEnter('rename-text', rename);
  onClick('delete-confirm', deleteConversation);
  onClick('export', () => byId('export-dialog').showModal());
  onClick('export-json', () => exportCurrent(false));
  onClick('export-markdown', () => exportCurrent(true));
  onClick('export-all', () => download('millrace-conversations.json', 'application/json', store.exported(store.list())));
  onClick('import', () => byId('import-file').click());
  byId('import-file').addEventListener('change', importFile);
  onClick('key-save', () => endKeyDialog(byId('key').value.trim()));
  onEnter('key', () => endKeyDialog(byId('key').value.trim()));
  keyDialog.addEventListener('close', () => {
    const entered = byId('key').value.trim() !== '' && keyDialog.returnValue !== 'cancel';
    byId('key').value = '';
    keyDialog.returnValue = '';
    const waiting = keyAnswers;
    keyAnswers = [];
    for (const resolve of waiting) resolve(entered);
  });
  keyDialog.addEventListener('cancel', () => { byId('key').value = ''; });
  onClick('key-cancel', () => keyDialog.close('cancel'));
  for (const name of ['settings', 'rename', 'delete', 'export']) onClick(`${name}-cancel`, () => byId(`${name}-dialog`).close());
  byId('model').addEventListener('change', () => {
    if (state.current) {
      state.current.model = byId('model').value;
      store.save(state.current);
    }
    store.saveDefaults((state.current ?? store.defaults()).settings, byId('model').value);
  });
  onClick('stop', stopAnswer);
  byId('composer').addEventListener('submit', (event) => {
    event.preventDefault();
    sendPrompt();
  });
  byId('prompt').addEventListener('input', fitPrompt);
  byId('prompt').addEventListener('keydown', (event) => {
    if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    sendPrompt();
  });
  document.addEventListener('keydown', (event) => {
    if (event.key !== 'Escape' || document.querySelector('dialog[open]')) return;
    if (document.body.classList.contains('sidebar-open')) {
      closeSidebar();
      byId('open-sidebar').focus();
    } else if (state.current && state.runs.has(state.current.id)) {
      stopAnswer();
    }
  });
  // Another tab changed the conversations. One that is answered here stays as it is here.
  addEventListener('storage', (event) => {
    if (event.key !== null && !event.key.startsWith(ITEM)) return;
    const mine = [...state.runs.keys()].map((id) => store.conversations.get(id)).filter(Boolean);
    store.load();
    for (const conversation of mine) store.conversations.set(conversation.id, conversation);
    if (state.current && state.current.messages.length > 0) state.current = store.conversations.get(state.current.id) ?? null;
    drawList();
    drawMessages();
  });
  addEventListener('beforeunload', () => {
    for (const id of state.runs.keys()) {
      const conversation = store.conversations.get(id);
      if (conversation) store.save(conversation);
    }
  });
  show(store.list()[0] ?? null);
  byId('prompt').focus();
  loadModels();
}

start();
