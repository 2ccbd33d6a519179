"""A server on the loopback interface that answers huggingface_hub as the hub does."""

import hashlib
import http.server
import urllib.parse


class Server(http.server.ThreadingHTTPServer):
    """Serves `repositories[name][revision]`, a folder; `requests` lists (method, revision, file) of what is asked."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.repositories, self.gated, self.requests = {}, set(), []

    def commit(self, name, revision):
        """The commit of a branch, made from its files."""
        files = sorted(self.repositories[name][revision].iterdir())
        return hashlib.sha1(b"".join(file.name.encode() + file.read_bytes() for file in files)).hexdigest()

    def find(self, name, revision):
        """(folder, commit), or the hub's code for what is missing."""
        if name in self.gated:
            return None, "GatedRepo"
        if name not in self.repositories:
            return None, "RepoNotFound"
        commits = {branch: self.commit(name, branch) for branch in self.repositories[name]}
        for branch, commit in commits.items():
            if revision in (branch, commit):
                return self.repositories[name][branch], commit
        return None, "RevisionNotFound"


class Handler(http.server.BaseHTTPRequestHandler):
    def do_HEAD(self):
        name, is_file, rest = urllib.parse.urlsplit(self.path).path.strip("/").partition("/resolve/")
        if not is_file:  # huggingface_hub's inquiries of its own
            return self.refuse(404, {})
        revision, _, file = rest.partition("/")
        revision = urllib.parse.unquote(revision)
        self.server.requests.append((self.command, revision, file))
        folder, commit = self.server.find(name, revision)
        if folder is None:
            return self.refuse(403 if commit == "GatedRepo" else 404, {"X-Error-Code": commit})
        if not (folder / file).is_file():
            return self.refuse(404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit})
        content = (folder / file).read_bytes()
        etag = f'"{hashlib.sha1(content).hexdigest()}"'
        self.reply(200, {"X-Repo-Commit": commit, "ETag": etag, "Content-Length": str(len(content))})
        return content

    def do_GET(self):
        if (content := self.do_HEAD()) is not None:
            self.wfile.write(content)

    def refuse(self, status, headers):
        self.reply(status, {"Content-Length": "0", **headers})

    def reply(self, status, headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *args):
        """Stays silent."""
