// Keeps the files of the page, so that it works offline after the first load. A new version has a cache of its own.
const CACHE = "keras_vit-{{version}}";
const FIRST = ["./", "page.css", "page.js", "page.json"]; // loaded before this worker runs

self.addEventListener("install", event => {
  self.skipWaiting();
  event.waitUntil(caches.open(CACHE).then(cache => cache.addAll(FIRST)));
});

self.addEventListener("activate", event => event.waitUntil((async () => {
  const old = (await caches.keys()).filter(name => name.startsWith("keras_vit-") && name !== CACHE);
  await Promise.all(old.map(name => caches.delete(name)));
  await self.clients.claim();
})()));

self.addEventListener("fetch", event => {
  if (event.request.method !== "GET") return;
  event.respondWith((async () => {
    const cache = await caches.open(CACHE);
    const known = await cache.match(event.request, {ignoreSearch: true});
    if (known) return known;
    const answer = await fetch(event.request);
    if (answer.status === 200) event.waitUntil(cache.put(event.request, answer.clone()));
    return answer;
  })());
});
