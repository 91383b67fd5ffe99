// Small tools to build the page. Text of users and models becomes text nodes only; nothing here parses HTML.

const byId = (id) => document.getElementById(id);

/// Returns a new element. `properties` are set as DOM properties, those with a dash as attributes.
function element(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key.includes('-') || key === 'role') {
      made.setAttribute(key, value);
    } else {
      made[key] = value;
    }
  }
  made.append(...children);
  return made;
}

function button(text, label, action, className = 'quiet') {
  const made = element('button', {type: 'button', className}, text);
  if (label !== text) made.setAttribute('aria-label', label);
  made.addEventListener('click', action);
  return made;
}

/// Tells screen readers a sentence without moving the focus.
function announce(text) {
  byId('live').textContent = text;
}

function showNotice(text) {
  byId('notice-text').textContent = text;
  byId('notice').hidden = false;
}

/// The clipboard's interface is there in secure contexts only: over HTTPS and on loopback.
async function copyText(text, from) {
  let done = true;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = element('textarea', {value: text, readOnly: true, className: 'unseen'});
    (from.closest('dialog') ?? document.body).append(area);
    area.select();
    done = document.execCommand('copy');
    area.remove();
    from.focus();
  }
  const before = from.textContent;
  from.textContent = done ? 'Copied' : 'Not copied';
  announce(from.textContent);
  setTimeout(() => { from.textContent = before; }, 1500);
}

function download(name, type, content) {
  const url = URL.createObjectURL(new Blob([content], {type}));
  element('a', {href: url, download: name}).click();
  setTimeout(() => URL.revokeObjectURL(url), 60000);
}
