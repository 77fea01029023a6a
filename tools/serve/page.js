'use strict';
const by = id => document.getElementById(id);
let model = null, job = null, events = null, figures = [], began = 0;

function say(text, bad) {
  by('state').textContent = text;
  by('state').classList.toggle('bad', !!bad);
}

async function call(path, body) {
  const options = { method: body === undefined ? 'GET' : 'POST', headers: {} };
  if (by('token').value) options.headers['Authorization'] = 'Bearer ' + by('token').value;
  if (body !== undefined) {
    options.headers['Content-Type'] = 'application/json';
    options.body = JSON.stringify(body);
  }
  const answer = await fetch(path, options);
  if (answer.status === 401) by('token-row').hidden = false;
  const value = await answer.json();
  if (!answer.ok) throw new Error(value.error ? value.error.message : answer.statusText);
  return value;
}

async function start() {
  try {
    model = (await call('v1/models')).data[0];
  } catch (error) {
    say(error.message, true);
    return;
  }
  by('model').textContent = model.id;
  by('about').textContent = `${model.size} pixels, ${model.backend}. ${model.guarantee}`;
  if (model.prompt === 'text') by('prompt').value = '';
  by('prompt-name').textContent = model.prompt === 'text' ? 'Prompt' : model.prompt === 'caption' ? `Caption, 0 to ${model.classes - 1}`
    : `Class, 0 to ${model.classes - 1}` + (model.class_names ? ' or a name' : '');
  by('negative-row').hidden = !model.negative_prompt;
  by('n').max = model.n_max;
  by('cfg').value = model.cfg;
  say('');
}

/* --- the text of a PNG --- */

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

/* --- a job --- */

function prepare(n) {
  figures = [];
  by('pictures').replaceChildren();
  for (let i = 0; i < n; i++) {
    const figure = by('picture').content.cloneNode(true).firstElementChild;
    const picture = figure.querySelector('img');
    picture.classList.toggle('small', parseInt(model.size) < 128);
    figure.querySelector('details').hidden = true;
    by('pictures').append(figure);
    figures.push({ figure, picture, loading: false, done: false });
    picture.onload = picture.onerror = () => { figures[i].loading = false; };
  }
}

function showImage(i, image) {
  const f = figures[i], caption = f.figure.querySelector('figcaption');
  if (image.status === 'done' && !f.done) {
    f.done = true;
    const url = `v1/jobs/${job.id}/images/${i}.png`; /* beside the page, whatever a proxy puts before it */
    f.picture.src = url;
    f.picture.alt = `${job.prompt ?? 'class ' + job.class}, seed ${job.seed}, image ${i}`;
    caption.textContent = `${job.prompt || job.class_name || (model.prompt === 'caption' ? 'caption ' : 'class ') + (job.class ?? 'none')}, ` +
      `seed ${job.seed}, image ${i}, guidance ${job.cfg}`;
    f.figure.querySelector('details').hidden = false;
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
  by('make').disabled = false;
  by('cancel').disabled = true;
  if (value.status === 'failed') say(value.error, true);
  else say(value.status === 'done' ? `done in ${((performance.now() - began) / 1000).toFixed(1)} s` : value.status);
}

async function make(event) {
  event.preventDefault();
  const body = { prompt: by('prompt').value, n: Number(by('n').value), cfg: Number(by('cfg').value) };
  if (by('negative').value) body.negative_prompt = by('negative').value;
  if (by('seed').value) body.seed = Number(by('seed').value);
  if (!model) await start();
  if (!model) return;
  by('make').disabled = true;
  began = performance.now();
  try {
    const value = await call('v1/jobs', body);
    prepare(value.images.length);
    by('cancel').disabled = false;
    events = new EventSource(`v1/jobs/${value.id}/events`);
    events.addEventListener('progress', e => show(JSON.parse(e.data), false));
    for (const end of ['done', 'failed', 'cancelled'])
      events.addEventListener(end, e => show(JSON.parse(e.data), true));
    events.onerror = () => say('the connection was lost, trying again', true);
    show(value, false);
  } catch (error) {
    say(error.message, true);
    by('make').disabled = false;
  }
}

by('form').addEventListener('submit', make);
by('cancel').addEventListener('click', () => call(`v1/jobs/${job.id}/cancel`, {}).catch(e => say(e.message, true)));
by('token').addEventListener('change', start);
start();
