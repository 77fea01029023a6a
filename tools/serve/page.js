'use strict';
const by = id => document.getElementById(id);
const fields = ['prompt', 'negative_prompt', 'n', 'cfg', 'seed']; /* of a request, and of the page */
let model = null, job = null, events = null, figures = [], began = 0;

function say(text, bad) {
  if (by('state').textContent !== text) by('state').textContent = text; /* so that it is read out once */
  by('state').classList.toggle('bad', !!bad);
}

function focusOn(input) {
  input.focus();
  input.select();
}

const nameOf = input => input.labels[0].firstChild.textContent.trim();

/* Shows an error under its field. */
function blame(input, text) {
  forgive(input);
  const note = document.createElement('p');
  note.id = input.id + '-error';
  note.className = 'bad';
  note.setAttribute('role', 'alert');
  input.labels[0].after(note);
  note.textContent = /^(is|has|names) /.test(text) ? `${nameOf(input)} ${text}` : text[0].toUpperCase() + text.slice(1);
  input.setAttribute('aria-invalid', 'true');
  input.setAttribute('aria-errormessage', note.id);
  if (by('options').contains(input)) by('options').open = true;
  focusOn(input);
}

function forgive(input) {
  input.removeAttribute('aria-invalid');
  input.removeAttribute('aria-errormessage');
  by(input.id + '-error')?.remove();
}

/* Shows what the service refused: its message begins with the name of a field, or is about none. */
function refuse(message) {
  const [, name, text] = /^(\w+): (.*)$/s.exec(message) || [];
  if (!fields.includes(name)) return say(message, true);
  say('');
  blame(by(name), text);
}

/* --- the service -------------------------------------------------------------------------------------------------- */

/* Asks for the token, which is kept as long as the tab. */
function askToken(isWrong) {
  const dialog = by('ask'), input = by('token'), wrong = 'This is not the service\'s token.';
  forgive(input);
  dialog.showModal();
  if (isWrong) blame(input, wrong);
  return new Promise((resolve, reject) => {
    dialog.onclose = () => reject(new Error('the service needs its token'));
    by('ask-form').onsubmit = event => {
      event.preventDefault();
      if (!/^[!-~]+$/.test(input.value.trim())) return blame(input, wrong); /* no header has it */
      sessionStorage.setItem('token', input.value.trim());
      resolve();
      dialog.close();
    };
  });
}

async function call(path, body) {
  const options = { method: body === undefined ? 'GET' : 'POST', headers: {} };
  if (body !== undefined) {
    options.headers['Content-Type'] = 'application/json';
    options.body = JSON.stringify(body);
  }
  for (;;) {
    const token = sessionStorage.getItem('token');
    if (token) options.headers['Authorization'] = 'Bearer ' + token;
    const answer = await fetch(path, options).catch(() => { throw new Error('the service does not answer'); });
    if (answer.status === 401) {
      await askToken(!!token);
      continue;
    }
    const value = await answer.json();
    if (!answer.ok) throw new Error(value.error ? value.error.message : answer.statusText);
    return value;
  }
}

/* Makes the first field fit the model. */
async function showModel() {
  let input = by('prompt');
  const before = input.value; /* if it was filled in before there was a token */
  const isText = model.prompt === 'text', name = isText ? 'Prompt' : model.prompt === 'caption' ? 'Caption' : 'Class';
  if (isText) {
    input.replaceWith(document.createElement('textarea'));
    input = by('form').querySelector('textarea');
    Object.assign(input, { id: 'prompt', value: before, rows: 3, placeholder: 'what the picture shows' });
    input.onkeydown = event => { /* as in a chat; with Shift a new line */
      if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      by('form').requestSubmit();
    };
  } else {
    const names = model.class_names ? (await call('v1/classes')).data : [];
    by('classes').replaceChildren(...names.map(text => new Option(text, text)));
    by('hint').textContent = (names.length ? 'A name, or a' : 'A') + ` number from 0 to ${model.classes - 1}`;
    input.value = before || (names[0] ?? 0);
  }
  input.labels[0].firstChild.textContent = name;
  by('model').textContent = model.id;
  by('about').textContent = `${model.size} pixels, ${model.backend}. ${model.guarantee}`;
  by('negative_prompt').labels[0].hidden = !model.negative_prompt;
  by('cfg').value = model.cfg;
}

async function start() {
  try {
    model = (await call('v1/models')).data[0];
    await showModel();
    say('');
  } catch (error) {
    say(error.message, true);
  }
  by('main').hidden = false;
  focusOn(by('prompt'));
}

/* --- the text of a PNG -------------------------------------------------------------------------------------------- */

function textOf(bytes) {
  const view = new DataView(bytes), all = new Uint8Array(bytes), texts = [];
  const latin = new TextDecoder('latin1'), utf8 = new TextDecoder();
  for (let at = 8; at + 12 <= all.length; at += 12 + view.getUint32(at)) {
    const type = latin.decode(all.subarray(at + 4, at + 8));
    const data = all.subarray(at + 8, at + 8 + view.getUint32(at));
    const end = data.indexOf(0);
    if (type === 'tEXt') texts.push([latin.decode(data.subarray(0, end)), latin.decode(data.subarray(end + 1))]);
    if (type === 'iTXt' && data[end + 1] === 0) { /* not compressed; behind it language and translated key */
      const language = data.indexOf(0, end + 3), key = data.indexOf(0, language + 1);
      texts.push([latin.decode(data.subarray(0, end)), utf8.decode(data.subarray(key + 1))]);
    }
  }
  return texts;
}

async function showText(figure, url) {
  const list = figure.querySelector('dl');
  const texts = textOf(await (await fetch(url)).arrayBuffer());
  list.replaceChildren();
  for (const [key, value] of texts) {
    const dt = document.createElement('dt'), dd = document.createElement('dd');
    dt.textContent = key;
    dd.textContent = value;
    list.append(dt, dd);
  }
}

/* --- a job -------------------------------------------------------------------------------------------------------- */

function setBusy(busy) {
  by('make').disabled = busy;
  by('cancel').disabled = !busy;
}

function prepare(n) {
  const [width, height] = model.size.split('x');
  figures = [];
  by('pictures').replaceChildren();
  for (let i = 0; i < n; i++) {
    const figure = by('picture').content.cloneNode(true).firstElementChild;
    const picture = figure.querySelector('img');
    picture.style.aspectRatio = `${width} / ${height}`;
    picture.classList.toggle('small', width < 128);
    by('pictures').append(figure);
    figures.push({ figure, picture, loading: false, done: false });
    picture.onload = () => { figures[i].loading = false; };
    picture.onerror = () => { picture.removeAttribute('src'), figures[i].loading = false; };
  }
}

const subject = () => job.prompt || job.class_name || `${model.prompt} ${job.class ?? 'none'}`;

function showImage(i, image) {
  const f = figures[i], caption = f.figure.querySelector('figcaption');
  if (image.status === 'done' && !f.done) {
    f.done = true;
    const url = `v1/jobs/${job.id}/images/${i}.png`; /* beside the page, whatever a proxy puts before it */
    f.picture.src = f.figure.querySelector('a').href = url;
    f.picture.alt = `${subject()}, image ${i}`;
    caption.textContent = `seed ${job.seed}, image ${i}, guidance ${job.cfg}`;
    showText(f.figure, url).catch(error => say(error.message, true));
  } else if (!f.done) {
    caption.textContent = image.status === 'running' ? `step ${image.step} of ${image.steps}` : image.status;
    if (image.preview && by('previews').checked && !f.loading) { /* one at a time */
      f.loading = true;
      f.picture.src = `v1/jobs/${job.id}/previews/${i}.png?step=${image.step}`;
    }
  }
}

function show(value, over) {
  const n = value.images.length;
  const done = value.images.reduce((sum, image) => sum + (image.steps ? image.step / image.steps : 0), 0);
  job = value;
  by('progress').value = done / n;
  value.images.forEach((image, i) => showImage(i, image));
  if (!over) {
    say(value.status);
    return;
  }
  events.close();
  setBusy(false);
  if (value.status === 'failed') refuse(value.error);
  else if (value.status === 'done') say(`done in ${((performance.now() - began) / 1000).toFixed(1)} s: ${subject()}`);
  else say(value.status);
}

/* Returns the fields that are filled in. What is no number goes as text, and the service says what it expects. */
function request() {
  const body = {};
  for (const name of fields) {
    const text = by(name).value.trim(), isText = name.endsWith('prompt');
    if (text) body[name] = isText || !Number.isFinite(Number(text)) ? text : Number(text);
  }
  return body;
}

async function make(event) {
  event.preventDefault();
  if (by('make').disabled) return;
  if (!model) await start();
  if (!model) return;
  by('make').disabled = true;
  fields.forEach(name => forgive(by(name)));
  began = performance.now();
  try {
    const value = await call('v1/jobs', request());
    by('warnings').replaceChildren(...(value.warnings ?? []).map(text => {
      const item = document.createElement('li');
      item.textContent = text;
      return item;
    }));
    prepare(value.images.length);
    job = value;
    setBusy(true);
    events = new EventSource(`v1/jobs/${value.id}/events`);
    events.addEventListener('progress', e => show(JSON.parse(e.data), false));
    for (const end of ['done', 'failed', 'cancelled'])
      events.addEventListener(end, e => show(JSON.parse(e.data), true));
    events.onerror = () => {
      const isLost = events.readyState === EventSource.CLOSED;
      say(isLost ? 'the service no longer has these pictures' : 'the connection was lost, trying again', true);
      if (isLost) setBusy(false);
    };
    show(value, false);
  } catch (error) {
    setBusy(false);
    refuse(error.message);
  }
}

by('form').addEventListener('submit', make);
by('cancel').addEventListener('click', () => call(`v1/jobs/${job.id}/cancel`, {}).catch(e => say(e.message, true)));
start();
