// The requests to the server. Addresses are relative, so that the page also works behind a proxy that serves it below a
// path.

const KEY = 'millrace-chat.key';  // in the session's storage: gone when the tab is closed
const EVENT_LIMIT = 16 * 1024 * 1024;

/// A request that failed. `status` is 0 if no answer came.
class RequestError extends Error {
  constructor(message, status = 0, code = '') {
    super(message);
    this.status = status;
    this.code = code;
  }
}

function sessionKey() {
  try {
    return sessionStorage.getItem(KEY) ?? '';
  } catch {
    return '';  // storage is switched off; each request asks
  }
}

function setSessionKey(key) {
  if (key) sessionStorage.setItem(KEY, key);
  else sessionStorage.removeItem(KEY);
}

async function errorOf(response) {
  let message = '', code = '';
  try {
    const {error} = JSON.parse((await response.text()).slice(0, 100000));
    message = typeof error === 'string' ? error : String(error.message ?? '');
    code = String(error.code ?? '');
  } catch {
    // Not in the form of OpenAI: a proxy's page, or nothing. The status must do.
  }
  const wait = response.headers.get('Retry-After');
  let text = message || `the server answered ${response.status} ${response.statusText}`.trim();
  if (response.status === 429 || response.status === 503) {
    text += wait && /^\d{1,6}$/.test(wait) ? ` Try again in ${wait} s.` : ' Try again in a moment.';
  }
  return new RequestError(text, response.status, code);
}

async function send(path, body, signal) {
  const headers = {};
  if (sessionKey()) headers.Authorization = `Bearer ${sessionKey()}`;
  if (body) headers['Content-Type'] = 'application/json';
  let response;
  try {
    response = await fetch(path, {
      method: body ? 'POST' : 'GET', headers, body: body ? JSON.stringify(body) : undefined, signal, cache: 'no-store',
      credentials: 'same-origin', redirect: 'error',
    });
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new RequestError('the server cannot be reached. Is it running?');
  }
  if (!response.ok) throw await errorOf(response);
  return response;
}

/// Returns [{id, context, parent}]. An adapter's parent is its base; others have none.
async function listModels() {
  const {data} = await (await send('v1/models')).json();
  return (Array.isArray(data) ? data : []).filter((model) => typeof model?.id === 'string')
      .map((model) => ({id: model.id, context: Number(model.max_model_len) || 0,
                       parent: typeof model.parent === 'string' ? model.parent : ''}));
}

/// Yields the data of the server-sent events of a response (WHATWG HTML, 9.2).
async function* eventsOf(response) {
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  let text = '';
  let data = [];
  for (;;) {
    let part;
    try {
      part = await reader.read();
    } catch (error) {
      if (error.name === 'AbortError') throw error;
      throw new RequestError('the connection broke before the answer was complete.');
    }
    text += decoder.decode(part.value ?? new Uint8Array(), {stream: !part.done});
    if (text.length > EVENT_LIMIT) throw new RequestError('the server sent an event that is too long.');
    const lines = text.split(/\r\n|\n|\r(?!$)/);
    text = lines.pop();
    for (const line of lines) {
      if (line === '') {
        if (data.length > 0) yield data.join('\n');
        data = [];
      } else if (line.startsWith('data:')) {
        data.push(line.slice(line[5] === ' ' ? 6 : 5));
      }
    }
    if (part.done) return;
  }
}

const SAMPLING = ['temperature', 'top_p', 'top_k', 'min_p', 'max_tokens', 'seed'];

/// Returns path and body of a request for an answer to `messages` ([{role, content}]).
function answerRequest(model, settings, messages) {
  const body = {model: model.id, stream: true, stream_options: {include_usage: true}};
  for (const name of SAMPLING) {
    if (typeof settings[name] === 'number') body[name] = settings[name];
  }
  if (settings.stop?.length > 0) body.stop = settings.stop;
  if (settings.form === 'text') {
    // The interface's own default is 16 tokens.
    body.max_tokens ??= model.context > 0 ? Math.max(1, Math.min(256, Math.floor(model.context / 2))) : 256;
    const texts = messages.map((message) => message.content);
    if (settings.system) texts.unshift(settings.system);
    return {path: 'v1/completions', body: {...body, prompt: texts.join('\n')}};
  }
  const all = settings.system ? [{role: 'system', content: settings.system}, ...messages] : messages;
  return {path: 'v1/chat/completions', body: {...body, messages: all}};
}

/// Streams an answer. Calls `onText` with each piece. Returns {finish, usage, firstMs, totalMs}; usage is null if the
/// server does not count.
async function streamAnswer({path, body}, signal, onText) {
  const began = performance.now();
  const result = {finish: '', usage: null, firstMs: 0, totalMs: 0};
  const response = await send(path, body, signal);
  let done = false;
  for await (const data of eventsOf(response)) {
    if (data === '[DONE]') {
      done = true;
      break;
    }
    let event;
    try {
      event = JSON.parse(data);
    } catch {
      throw new RequestError('the server sent an event that is no JSON.');
    }
    if (event.error) throw new RequestError(String(event.error.message ?? event.error), response.status, String(event.error.code ?? ''));
    const choice = event.choices?.[0];
    const piece = choice?.delta?.content ?? choice?.text;
    if (typeof piece === 'string' && piece !== '') {
      if (result.firstMs === 0) result.firstMs = performance.now() - began;
      onText(piece);
    }
    if (typeof choice?.finish_reason === 'string') result.finish = choice.finish_reason;
    if (Number.isFinite(event.usage?.completion_tokens)) {
      result.usage = {prompt: Number(event.usage.prompt_tokens) || 0, completion: event.usage.completion_tokens};
    }
  }
  // A stream that ends without its end mark was cut, even if the connection was closed in order.
  if (!done) throw new RequestError('the connection broke before the answer was complete.');
  result.totalMs = performance.now() - began;
  return result;
}
