// Runs model.onnx on the visitor's photos: decoding, resizing as keras_vit does it, onnxruntime-web, answers.

const MAX_PIXELS = 64e6;
const MAX_ELONGATION = 8; // of images whose middle is resized, or whose height is resized first
const part = id => document.getElementById(id);
const kept = []; // of an encoder: {name, address, features} of each photo
let about, session, ort, device, busy = Promise.resolve();

class Mistake extends Error {} // whose message is for the visitor

// ---- from a file to pixels

/** Decode a file to {height, width, data} with red, green, blue and alpha, 8 bits each, upright. */
async function decode(file) {
  if (!file.size) throw new Mistake(`${file.name} is empty: choose another file.`);
  const address = URL.createObjectURL(file), image = new Image();
  try {
    const isImage = await new Promise(done => {
      [image.onload, image.onerror] = [() => done(true), () => done(false)];
      image.src = address;
    });
    if (!isImage) throw new Mistake(`${file.name} is no image that this browser can read: choose a JPEG, PNG or WebP.`);
    const pixels = image.naturalWidth * image.naturalHeight; // known before the image is decoded
    if (pixels > MAX_PIXELS)
      throw new Mistake(`${file.name} has ${Math.round(pixels / 1e6)} megapixels: choose one of at most 64.`);
    const options = {imageOrientation: "from-image", colorSpaceConversion: "none", premultiplyAlpha: "none"};
    const bitmap = await createImageBitmap(file, options);
    const {width, height} = bitmap, canvas = new OffscreenCanvas(width, height);
    const context = canvas.getContext("2d", {willReadFrequently: true});
    context.drawImage(bitmap, 0, 0);
    let data = context.getImageData(0, 0, width, height).data;
    for (let i = 3; i < data.length; i += 4) if (data[i] < 255) { data = unmultiplied(bitmap, data); break; }
    bitmap.close();
    return {width, height, data};
  } finally {
    URL.revokeObjectURL(address);
  }
}

/** Return the pixels of a transparent image; a 2D canvas would multiply them by their alpha. */
function unmultiplied({width, height}, data) {
  const gl = new OffscreenCanvas(1, 1).getContext("webgl");
  if (!gl || Math.max(width, height) > gl.getParameter(gl.MAX_TEXTURE_SIZE)) return data;
  gl.pixelStorei(gl.UNPACK_PREMULTIPLY_ALPHA_WEBGL, false);
  gl.pixelStorei(gl.UNPACK_COLORSPACE_CONVERSION_WEBGL, gl.NONE);
  gl.bindTexture(gl.TEXTURE_2D, gl.createTexture());
  gl.texImage2D(gl.TEXTURE_2D, 0, gl.RGBA, gl.RGBA, gl.UNSIGNED_BYTE, arguments[0]);
  gl.bindFramebuffer(gl.FRAMEBUFFER, gl.createFramebuffer());
  const texture = gl.getParameter(gl.TEXTURE_BINDING_2D);
  gl.framebufferTexture2D(gl.FRAMEBUFFER, gl.COLOR_ATTACHMENT0, gl.TEXTURE_2D, texture, 0);
  const pixels = new Uint8Array(4 * width * height);
  gl.readPixels(0, 0, width, height, gl.RGBA, gl.UNSIGNED_BYTE, pixels);
  return pixels;
}

/** Return {height, width, channels, data} without alpha, or with the luma of ITU-R 601-2 (integers, as in Pillow). */
function withChannels({width, height, data}, channels) {
  const values = new Uint8Array(width * height * channels);
  for (let i = 0, k = 0; k < values.length; i += 4)
    if (channels === 1) values[k++] = (19595 * data[i] + 38470 * data[i + 1] + 7471 * data[i + 2] + 32768) >> 16;
    else for (let c = 0; c < 3; c++) values[k++] = data[i + c];
  return {width, height, channels, data: values};
}

// ---- from pixels to the input of the model

const even = x => { const low = Math.floor(x); return x - low === 0.5 ? low + low % 2 : Math.round(x); };
const triangle = x => Math.max(0, 1 - Math.abs(x));
const cubic = x => { // Keys, with a = -1/2
  x = Math.abs(x);
  return x < 1 ? (1.5 * x - 2.5) * x * x + 1 : x < 2 ? ((-0.5 * x + 2.5) * x - 4) * x + 2 : 0;
};

/** interpolation -> function of a place in the result, the ratio of old to new side and the old side, which returns the
 * first sample that is read and the weights of this and the following ones. Places count from the middle of pixels. */
const KERNELS = {
  nearest: (place, ratio, side) => [Math.min(Math.floor((place + 0.5) * ratio), side - 1), [1]],
  bilinear: (place, ratio, side) => {
    const middle = (place + 0.5) * ratio - 0.5, low = Math.floor(middle), share = middle - low;
    if (low < 0 || low > side - 2) return [Math.min(Math.max(low, 0), side - 1), [1]];
    return [low, [1 - share, share]];
  },
  area: (place, ratio, side) => {
    const from = place * ratio, to = from + ratio, first = Math.floor(from), weights = [];
    for (let i = first; i < Math.min(to, side); i++) weights.push(Math.min(i + 1, to) - Math.max(i, from));
    return [first, weights];
  },
  bilinear_antialias: (...where) => antialiased(triangle, 1, ...where),
  bicubic: (...where) => antialiased(cubic, 2, ...where),
};

const ROUNDED = ["bicubic", "bilinear_antialias"]; // to integers after each axis, as in Pillow

function antialiased(kernel, radius, place, ratio, side) {
  const middle = (place + 0.5) * ratio, wide = Math.max(ratio, 1), weights = [];
  const first = Math.max(Math.ceil(middle - radius * wide - 0.5), 0);
  const last = Math.min(Math.floor(middle + radius * wide - 0.5), side - 1);
  for (let i = first; i <= last; i++) weights.push(kernel((i + 0.5 - middle) / wide));
  return [first, weights];
}

/** Resize one axis of an image (0: rows, 1: columns) to `resized` and return `wanted` values from `start` on. */
function resizeAxis({height, width, channels, data}, axis, resized, start, wanted, interpolation) {
  const [outer, side, inner] = axis ? [height, width, channels] : [1, height, width * channels];
  const samples = Array.from({length: wanted}, (_, place) => {
    const [first, weights] = KERNELS[interpolation](place + start, side / resized, side);
    const total = weights.reduce((sum, weight) => sum + weight, 0);
    return {first, weights: Float64Array.from(weights, weight => weight / total)};
  });
  const result = new Float32Array(outer * wanted * inner);
  let k = 0;
  for (let row = 0; row < outer; row++)
    for (const {first, weights} of samples)
      for (let column = 0; column < inner; column++) {
        let i = (row * side + first) * inner + column, sum = 0;
        for (let tap = 0; tap < weights.length; tap++, i += inner) sum += weights[tap] * data[i];
        result[k++] = sum;
      }
  if (ROUNDED.includes(interpolation))
    for (k = 0; k < result.length; k++) result[k] = Math.min(Math.max(Math.floor(result[k] + 0.5), 0), 255);
  return {height: axis ? height : wanted, width: axis ? wanted : width, channels, data: result};
}

/** Return the image as the model expects it: Float32Array (height, width, channels), values 0 to 255. */
function prepare(image, preprocessing) {
  const {size, pad, rounding, interpolation, image_size: target, mean} = preprocessing;
  const isPillow = ROUNDED.includes(interpolation);
  let sides = [image.height, image.width];
  const least = Math.min(...sides);
  if (!isPillow && !Array.isArray(size) && Math.max(...sides) > MAX_ELONGATION * least) {
    const starts = sides.map(side => Math.floor(Math.max(side - MAX_ELONGATION * least, 0) / 2));
    for (const axis of [0, 1])
      image = resizeAxis(image, axis, sides[axis], starts[axis], sides[axis] - 2 * starts[axis], "nearest");
    sides = [image.height, image.width];
  }
  const scale = pad ? Math.min(size[0] / sides[0], size[1] / sides[1]) : 0;
  const resized = pad ? sides.map(side => Math.max(Math.floor(side * scale + 0.5), 1))
    : Array.isArray(size) ? size
    : sides.map(side => rounding === "big_vision" ? even(size * side / least) : Math.floor(size * side / least));
  const wanted = pad ? resized : target;
  const start = resized.map((side, axis) => {
    const rest = side - wanted[axis];
    return Math.floor(rest / 2) + (rounding === "torchvision" && rest % 4 === 3 ? 1 : 0);
  });
  const order = isPillow && image.height > MAX_ELONGATION * image.width ? [0, 1] : [1, 0];
  for (const axis of order)
    image = resizeAxis(image, axis, resized[axis], start[axis], wanted[axis], interpolation);
  return pad ? framed(image, target, mean) : image.data;
}

function framed({height, width, channels, data}, [rows, columns], mean) {
  const whole = Float32Array.from({length: rows * columns * channels}, (_, i) => 255 * mean[i % channels]);
  for (let row = 0; row < height; row++)
    whole.set(data.subarray(row * width * channels, (row + 1) * width * channels), row * columns * channels);
  return whole;
}

/** Return the input of the model for a file. */
async function pixels(file, preprocessing = about.preprocessing) {
  return prepare(withChannels(await decode(file), preprocessing.channels), preprocessing);
}

// ---- from the input to the answer

/** Return {pixels, output, milliseconds} of a file; `output` are the probabilities of all classes, or the features. */
async function run(file) {
  const started = performance.now(), data = await pixels(file), output = activated(await call(data));
  return {pixels: data, output, milliseconds: performance.now() - started};
}

/** Return the output of the model for one input. */
async function call(data) {
  const {image_size: [height, width], channels} = about.preprocessing;
  const images = new ort.Tensor("float32", data, [1, height, width, channels]);
  return Float64Array.from((await session.run({images}))[about.output].data);
}

function activated(values) {
  if (about.activation === "sigmoid") return values.map(x => 1 / (1 + Math.exp(-x)));
  if (about.activation !== "softmax") return values;
  const largest = values.reduce((a, b) => Math.max(a, b)), powers = values.map(x => Math.exp(x - largest));
  const total = powers.reduce((a, b) => a + b);
  return powers.map(x => x / total);
}

const label = place => about.labels ? about.labels[place] : `class ${place}`;
const best = (values, count) => [...values.keys()].sort((a, b) => values[b] - values[a]).slice(0, count);

function cosine(a, b) {
  const dot = (x, y) => x.reduce((sum, value, i) => sum + value * y[i], 0);
  return dot(a, b) / Math.sqrt(dot(a, a) * dot(b, b));
}

// ---- the page

function say(text, isError = false) {
  part("status").textContent = text;
  part("status").classList.toggle("error", isError);
}

function element(kind, properties, ...children) {
  const made = Object.assign(document.createElement(kind), properties);
  made.append(...children);
  return made;
}

/** Show the answer for a photo above the others. */
function show(file, {output}) {
  const address = URL.createObjectURL(file), list = element("ol", {});
  const row = (name, score, text, ...images) => list.append(element("li", {}, ...images,
    element("span", {textContent: name}), element("span", {textContent: text}),
    element("meter", {value: Math.max(score, 0), ariaLabel: text})));
  if (about.output !== "features")
    for (const place of best(output, 5))
      row(label(place), output[place], `${(100 * output[place]).toFixed(1)} %`);
  else {
    const scores = kept.map(other => cosine(output, other.features));
    for (const place of best(scores, 5)) {
      const {name, address} = kept[place];
      row(name, scores[place], scores[place].toFixed(3), element("img", {src: address, alt: ""}));
    }
    if (!kept.length) list.append(element("li", {textContent: "Add more photos: the nearest ones are shown here."}));
    kept.push({name: file.name, address, features: output});
  }
  const answer = element("div", {}, element("h2", {textContent: file.name}), list);
  part("answers").prepend(element("article", {}, element("img", {src: address, alt: file.name}), answer));
}

/** Answer for one file after the other; a mistake is shown until the last file, and the next file follows. */
function answer(files) {
  if (!device) return busy; // files that are dropped before the page is ready
  const mistakes = [];
  for (const file of files)
    busy = busy.then(async () => {
      if (!mistakes.length) say(`Reading ${file.name}`);
      const found = await run(file);
      show(file, found);
      if (!mistakes.length) say(`${device}, ${Math.round(found.milliseconds)} ms for the last photo`);
    }).catch(error => {
      mistakes.push(error instanceof Mistake ? error.message : `${file.name} failed: ${error.message}.`);
      say(mistakes.join(" "), true);
    });
  return busy;
}

/** Fetch model.onnx and report how much has arrived. */
async function download() {
  const bytes = new Uint8Array(about.bytes), megabytes = count => (count / 1e6).toFixed(0);
  let received = 0;
  try {
    const response = await fetch("model.onnx", {cache: "no-cache"});
    if (!response.ok) throw new Error(`status ${response.status}`);
    for (const reader = response.body.getReader(); ;) {
      const {done, value} = await reader.read();
      if (done) break;
      bytes.set(value, received);
      received += value.length;
      part("progress").value = received / about.bytes;
      say(`Loading the model: ${megabytes(received)} of ${megabytes(about.bytes)} MB`);
    }
    if (received !== about.bytes) throw new Error(`${received} of ${about.bytes} bytes`);
  } catch (error) {
    throw new Mistake(`model.onnx did not arrive (${error.message}): reload the page.`);
  }
  return bytes;
}

/** Open the model on WebGPU if the browser has it and a first call succeeds, else with WebAssembly. */
async function open(bytes) {
  const adapter = await navigator.gpu?.requestAdapter().catch(() => null);
  const hasGpu = adapter && !adapter.info?.isFallbackAdapter; // that one is slower than WebAssembly
  for (const provider of hasGpu ? ["webgpu", "wasm"] : ["wasm"])
    try {
      ort = await import(`./runtime/ort.${provider}.min.mjs`);
      ort.env.wasm.wasmPaths = new URL("runtime/", location.href).href;
      session = await ort.InferenceSession.create(bytes, {executionProviders: [provider]});
      const {image_size: [height, width], channels} = about.preprocessing;
      await call(new Float32Array(height * width * channels));
      const threads = ort.env.wasm.numThreads; // half of the cores, at most 4; one without isolation from other origins
      device = provider === "webgpu" ? "WebGPU" : `WebAssembly, ${threads} thread${threads > 1 ? "s" : ""}`;
      return;
    } catch (error) {
      if (provider === "wasm") throw new Mistake(`The model did not start: ${error.message}`);
    }
}

/** Start the worker that keeps the files, where the browser has it, and wait until it sees what is fetched. */
async function keepOffline() {
  const workers = navigator.serviceWorker;
  if (!workers) return;
  const controlled = new Promise(done => workers.addEventListener("controllerchange", done, {once: true}));
  const registration = await workers.register("worker.js"), {waiting} = registration;
  registration.update().catch(() => null); // finds a new version for the next visit
  const hasOld = Boolean(waiting && workers.controller);
  waiting?.postMessage("replace the version before");
  if (hasOld || !workers.controller) await Promise.race([controlled, new Promise(done => setTimeout(done, 3000))]);
  if (hasOld) await new Promise(() => location.reload());
}

async function start() {
  if (typeof WebAssembly !== "object")
    throw new Mistake("This browser has no WebAssembly, which the model needs: use a current browser.");
  about = await (await fetch("page.json", {cache: "no-cache"})).json();
  document.title = part("name").textContent = about.name;
  part("about").textContent = about.text;
  part("progress").hidden = false;
  await keepOffline().catch(() => null); // the page works without
  await open(await download());
  part("progress").hidden = true;
  part("files").disabled = false;
  say(`Ready (${device}).`);
}

part("files").addEventListener("change", event => {
  answer([...event.target.files]);
  event.target.value = "";
});
for (const kind of ["dragover", "dragleave", "drop"])
  document.addEventListener(kind, event => {
    event.preventDefault();
    part("drop").classList.toggle("over", kind === "dragover");
    if (kind === "drop") answer([...event.dataTransfer.files]);
  });
document.addEventListener("paste", event => answer([...event.clipboardData.files]));

const ready = start().catch(error => {
  say(error instanceof Mistake ? error.message : `The page did not start: ${error.message}`, true);
  part("progress").hidden = true;
});
window.keras_vit = {ready, run, pixels, answer, label, best}; // for tests and other scripts of the page
