// Keeps the files of the page, so that it works offline after the first load. Each version has a cache of its own, and
// replaces the one before when a visitor opens the page again.
const SCOPE = `keras_vit ${self.registration.scope} `, CACHE = `${SCOPE}{{version}}`; // a host may have several pages
const FIRST = ["./", "page.css", "page.js", "page.json"]; // loaded before this worker runs

self.addEventListener("install", event => event.waitUntil((async () => {
  const cache = await caches.open(CACHE);
  await cache.addAll(FIRST.map(name => new Request(name, {cache: "reload"})));
})()));

self.addEventListener("message", () => self.skipWaiting());

self.addEventListener("activate", event => event.waitUntil((async () => {
  const old = (await caches.keys()).filter(name => name.startsWith(SCOPE) && name !== CACHE);
  await Promise.all(old.map(name => caches.delete(name)));
  await self.clients.claim();
})()));

self.addEventListener("fetch", event => {
  if (event.request.method !== "GET") return;
  event.respondWith((async () => {
    const cache = await caches.open(CACHE);
    const known = await cache.match(event.request, {ignoreSearch: true});
    if (known) return isolated(known);
    const answer = await fetch(event.request, {cache: "no-cache"});
    if (answer.status === 200) event.waitUntil(cache.put(event.request, answer.clone()));
    return isolated(answer);
  })());
});

// Adds the headers with which browsers allow threads, as many static hosts cannot send them.
function isolated(answer) {
  if (answer.status !== 200) return answer;
  const headers = new Headers(answer.headers);
  headers.set("Cross-Origin-Opener-Policy", "same-origin");
  headers.set("Cross-Origin-Embedder-Policy", "require-corp");
  return new Response(answer.body, {headers});
}
