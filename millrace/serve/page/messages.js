// Draws the messages of a conversation.

/// Returns "120 + 64 tokens · 31.5 tokens/s · first after 0.21 s".
function figuresOf(message) {
  const parts = [];
  if (message.usage) {
    parts.push(`${message.usage.prompt} + ${message.usage.completion} tokens`);
    const seconds = (message.totalMs - message.firstMs) / 1000;
    if (message.usage.completion > 1 && seconds > 0) parts.push(`${((message.usage.completion - 1) / seconds).toFixed(1)} tokens/s`);
    if (message.firstMs > 0) parts.push(`first after ${(message.firstMs / 1000).toFixed(2)} s`);
  }
  if (message.finish === 'length') parts.push('ended at the limit of tokens');
  if (message.finish === 'stopped') parts.push('stopped');
  return parts.join(' · ');
}

/// One message on the screen. `actions` are what its buttons do.
class MessageView {
  constructor(conversation, message, actions) {
    this.conversation = conversation;
    this.message = message;
    this.actions = actions;
    this.node = element('li', {className: `message ${message.role}`});
    this.author = element('h3', {}, message.role === 'user' ? 'You' : message.model || 'Model');
    this.text = element('div', {className: message.role === 'user' ? 'text' : 'markdown', dir: 'auto'});
    this.markdown = message.role === 'user' ? null : new MarkdownView(this.text);
    this.below = element('div');
    this.node.append(this.author, this.text, this.below);
    this.update(false);
  }

  /// Shows the message as it now is. `running`: its answer still comes.
  update(running) {
    const {message} = this;
    if (this.markdown) this.markdown.update(message.content);
    else this.text.textContent = message.content;
    this.node.setAttribute('aria-busy', String(running));
    if (running) {
      if (!this.below.firstChild?.classList.contains('waiting')) {
        this.below.replaceChildren(element('span', {className: 'waiting'}, 'Answering'));
      }
      return;
    }
    this.below.replaceChildren();
    if (message.problem) this.below.append(this.problemBox());
    this.below.append(this.tools());
  }

  problemBox() {
    const {message, actions} = this;
    const buttons = element('div', {className: 'row'}, button('Try again', 'Try again', () => actions.regenerate(message), ''));
    if (message.status === 401) buttons.append(button('Enter a key', 'Enter an API key', () => actions.enterKey(message), ''));
    if (this.conversation.settings.form === 'chat' && (message.status === 404 || /template/i.test(message.problem))) {
      buttons.append(button('Send as plain text', 'Send as plain text', () => actions.plainText(message), ''));
    }
    return element('div', {className: 'problem', role: 'alert'},
        element('span', {className: 'bad'}, `No ${message.content ? 'whole ' : ''}answer: ${message.problem}`), buttons);
  }

  tools() {
    const {conversation, message, actions} = this;
    const row = element('div', {className: 'tools'});
    const siblings = siblingsOf(conversation, message);
    if (siblings.length > 1) {
      const at = siblings.indexOf(message);
      const to = (step, text, label) => {
        const made = button(text, label, () => actions.showBranch(siblings[at + step], text));
        made.disabled = !siblings[at + step];
        return made;
      };
      row.append(to(-1, '‹', 'Previous version'), element('span', {className: 'dim'}, `${at + 1} of ${siblings.length}`), to(1, '›', 'Next version'));
    }
    if (message.content) {
      const copy = button('Copy', message.role === 'user' ? 'Copy your message' : 'Copy the answer', () => copyText(message.content, copy));
      row.append(copy);
    }
    if (message.role === 'user') row.append(button('Edit', 'Edit your message', () => this.edit()));
    else if (!message.problem) row.append(button('Regenerate', 'Regenerate the answer', () => actions.regenerate(message)));
    if (message.role === 'assistant') row.append(element('span', {className: 'figures'}, figuresOf(message)));
    return row;
  }

  edit() {
    const {message, actions} = this;
    const area = element('textarea', {value: message.content, rows: Math.min(12, message.content.split('\n').length + 1), 'aria-label': 'Edit your message'});
    const end = () => {
      area.replaceWith(this.text);
      this.update(false);
      [...this.below.querySelectorAll('button')].find((made) => made.textContent === 'Edit').focus();
    };
    const send = () => {
      if (area.value.trim() && !actions.edit(message, area.value)) end();
    };
    area.addEventListener('keydown', (event) => {
      if (event.key === 'Escape') {
        event.stopPropagation();
        end();
      } else if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        send();
      }
    });
    this.text.replaceWith(area);
    this.below.replaceChildren(element('div', {className: 'row'}, button('Send', 'Send the edited message', send, 'primary'),
        button('Cancel', 'Cancel editing', end, '')));
    area.focus();
    area.setSelectionRange(area.value.length, area.value.length);
  }
}
