#include "millrace/object/hf/testing/hub_server.h"

#include <algorithm>
#include <charconv>
#include <set>

#include "millrace/base/hash/digest.h"
#include "millrace/base/hash/text_encoding.h"
#include "millrace/base/json.h"
#include "millrace/base/text.h"

namespace millrace::object::hf::testing {
namespace {

constexpr std::string_view kTime = "2026-01-31T12:00:00.000Z";
constexpr std::string_view kCache = "/api/resolve-cache/";

std::string GitBlob(std::string_view content) {
  Hasher hasher(Hasher::Algorithm::kSha1);
  const std::string head = fmt::format("blob {}", content.size());
  hasher.Update(AsBytes(std::string_view(head.c_str(), head.size() + 1)));
  hasher.Update(AsBytes(content));
  return HexEncode(hasher.Finish());
}

std::string Sha256Of(std::string_view content) { return HexEncode(Sha256(AsBytes(content))); }

void Refuse(http::ServerResponse& response, int status, const char* code, const char* message) {
  http::Headers headers;
  headers.Set("X-Error-Code", code);
  headers.Set("X-Error-Message", message);
  (void)response.Send(status, std::move(headers), AsBytes(DumpJson({{"error", message}})));
}

void SendJson(http::ServerResponse& response, http::Headers headers, const std::string& json) {
  headers.Set("Content-Type", "application/json");
  (void)response.Send(200, std::move(headers), AsBytes(json));
}

/// Returns none if the text is malformed.
std::vector<std::pair<std::string, std::string>> ParametersOf(std::string_view text) {
  auto parameters = http::ParseQuery(text);
  if (!parameters) return {};
  return *std::move(parameters);
}

std::string Query(const http::ServerRequest& request, std::string_view name) {
  for (const auto& [key, value] : ParametersOf(request.query())) {
    if (key == name) return value;
  }
  return "";
}

/// Returns the offset and the length that a header such as "bytes=5-9" asks for. Returns nothing if it is malformed or
/// lies outside of the content.
std::optional<std::pair<std::size_t, std::size_t>> ParseRange(std::string_view text, std::size_t size) {
  if (!text.starts_with("bytes=")) return std::nullopt;
  text.remove_prefix(6);
  const std::size_t dash = text.find('-');
  std::size_t first = 0, last = size - 1;
  auto read = [](std::string_view digits, std::size_t& value) {
    std::from_chars(digits.data(), digits.data() + digits.size(), value);
  };
  read(text.substr(0, dash), first);
  if (dash + 1 < text.size()) read(text.substr(dash + 1), last);
  last = std::min(last, size - 1);
  if (first > last) return std::nullopt;
  return std::pair(first, last - first + 1);
}

}  // namespace

struct HubServer::Repository {
  Access access = Access::kPublic;
  std::map<std::string, std::string> branches;  ///< their commits
  std::map<std::string, CommitFiles> commits;
};

/// A request, taken apart.
struct HubServer::Route {
  std::string repository;  ///< "models/OWNER/NAME"
  std::string call;        ///< "revision", "tree", "paths-info", "resolve", "resolve-cache"
  std::string revision, path;

  /// Errors: kInvalidArgument if the target is none of the API.
  static Result<Route> Of(std::string_view target) {
    Route route;
    const bool api = target.starts_with("/api/"), cache = target.starts_with(kCache);
    std::string text(target.substr(cache ? kCache.size() : api ? 5 : 1));
    if (!api && !text.starts_with("datasets/") && !text.starts_with("spaces/")) text = "models/" + text;
    std::size_t first = text.npos;
    std::string_view found;
    for (const std::string_view call : {"/revision/", "/tree/", "/paths-info/", "/resolve/", "/@/"}) {
      if (const std::size_t at = text.find(call); at < first) {
        first = at;
        found = call;
      }
    }
    if (!found.empty()) {
      route.repository = text.substr(0, first);
      route.call = cache ? "resolve-cache" : found.substr(1, found.size() - 2);
      const std::string rest = text.substr(first + found.size());
      const std::size_t slash = rest.find('/');
      route.revision = MR_TRY(PercentDecode(rest.substr(0, slash)));
      if (slash != rest.npos) route.path = MR_TRY(PercentDecode(rest.substr(slash + 1)));
      return route;
    }
    route.repository = text;  // "/api/models/OWNER/NAME": the description of the default branch
    route.call = "revision";
    route.revision = "main";
    if (!api) return Fail(Code::kInvalidArgument, "no call of the hub: {}", target);
    return route;
  }
};

Result<std::unique_ptr<HubServer>> HubServer::Start(Options options) {
  const std::string host = options.listen.substr(0, options.listen.rfind(':'));
  std::unique_ptr<HubServer> server(new HubServer(std::move(options)));
  auto serve = [self = server.get()](bool storage) {
    return [self, storage](http::ServerRequest& request, http::ServerResponse& response) {
      self->Serve(storage, request, response);
    };
  };
  server->storage_ = MR_TRY(http::Server::Start({.listen = host + ":0"}, serve(true)));
  server->hub_ = MR_TRY(http::Server::Start({.listen = server->options_.listen}, serve(false)));
  return server;
}

HubServer::~HubServer() {
  for (auto* server : {&hub_, &storage_}) {
    if (*server) (*server)->Stop(Duration::zero());
  }
}

std::string HubServer::url() const { return "http://" + hub_->address(); }

void HubServer::SetAccess(const std::string& repository, Access access) {
  MutexLock lock(mutex_);
  if (auto found = repositories_.find(repository); found != repositories_.end()) found->second->access = access;
}

std::string HubServer::Commit(const std::string& repository, FileContents files, const std::string& branch) {
  std::string history = repository + branch;
  MutexLock lock(mutex_);
  std::shared_ptr<Repository>& known = repositories_[repository];
  if (!known) known = std::make_shared<Repository>();
  history += known->branches[branch];
  for (const auto& [path, content] : files) {
    history += path + GitBlob(content);
    if (content.size() >= options_.large_from) stored_[Sha256Of(content)] = content;
  }
  const std::string commit = GitBlob(history);
  known->commits[commit] = std::make_shared<const FileContents>(std::move(files));
  known->branches[branch] = commit;
  return commit;
}

void HubServer::SetFaults(std::function<Fault(const Seen&)> faults) {
  MutexLock lock(mutex_);
  faults_ = std::move(faults);
}

void HubServer::ExpireAddresses() {
  MutexLock lock(mutex_);
  ++signature_;
}

std::vector<HubServer::Seen> HubServer::seen() const {
  MutexLock lock(mutex_);
  return seen_;
}

void HubServer::Serve(bool storage, http::ServerRequest& request, http::ServerResponse& response) {
  Seen seen{.storage = storage,
            .method = std::string(request.method()),
            .target = std::string(request.target()),
            .authorization = std::string(request.headers().Get("authorization")),
            .range = std::string(request.headers().Get("range"))};
  Fault fault = Fault::kNone;
  {
    MutexLock lock(mutex_);
    if (faults_) fault = faults_(seen);
    seen_.push_back(std::move(seen));
  }
  http::Headers headers;
  if (fault == Fault::kThrottle) {
    headers.Set("Retry-After", "0");
    return (void)response.Send(429, std::move(headers), {});
  }
  if (fault == Fault::kUnavailable) return (void)response.Send(503, std::move(headers), {});
  storage ? ServeStorage(request, response, fault) : ServeHub(request, response, fault);
}

std::string HubServer::EntryOf(const std::string& path, const std::string& content) const {
  Json entry = {{"type", "file"}, {"oid", GitBlob(content)}, {"size", content.size()}, {"path", path}};
  if (content.size() >= options_.large_from) {
    entry["lfs"] = {{"oid", Sha256Of(content)}, {"size", content.size()}, {"pointerSize", 134}};
  }
  return DumpJson(entry);
}

void HubServer::ServeHub(http::ServerRequest& request, http::ServerResponse& response, Fault fault) {
  auto route = Route::Of(request.path());
  if (!route) return Refuse(response, 404, "", "Not found");
  std::string commit;
  CommitFiles files;
  std::string signature;
  {
    const bool known_user = request.headers().Get("authorization") == "Bearer " + options_.token;
    MutexLock lock(mutex_);
    auto found = repositories_.find(route->repository);
    const bool strange = request.headers().Has("authorization") && !known_user;
    if (strange) return Refuse(response, 401, "", "Invalid credentials in Authorization header");
    if (found == repositories_.end() || (found->second->access == Access::kPrivate && !known_user)) {
      return Refuse(response, known_user ? 404 : 401, "RepoNotFound", "Invalid username or password.");
    }
    if (found->second->access == Access::kGated && !known_user) {
      return Refuse(response, 401, "GatedRepo", "Access to this model is restricted.");
    }
    auto branch = found->second->branches.find(route->revision);
    commit = branch == found->second->branches.end() ? route->revision : branch->second;
    auto at = found->second->commits.find(commit);
    if (at == found->second->commits.end()) {
      return Refuse(response, 404, "RevisionNotFound", "Invalid rev id");
    }
    files = at->second;
    signature = std::to_string(signature_);
  }
  if (route->call == "revision") {
    const std::string id = route->repository.substr(route->repository.find('/') + 1);
    Json siblings = Json::array();
    for (const auto& [path, content] : *files) siblings.push_back({{"rfilename", path}});
    return SendJson(response, {},
                    DumpJson({{"_id", "0"},
                              {"id", id},
                              {"sha", commit},
                              {"lastModified", kTime},
                              {"private", false},
                              {"tags", Json::array()},
                              {"downloads", 0},
                              {"siblings", siblings}}));
  }
  if (route->call == "tree") return ServeTree(*route, request, response, *files);
  if (route->call == "paths-info") {
    std::string answer;
    const std::string body = request.ReadAllBody(kMiB).value_or("");
    for (const auto& [name, path] : ParametersOf(body)) {
      auto found = files->find(path);
      if (name == "paths" && found != files->end()) {
        answer += (answer.empty() ? "" : ",") + EntryOf(path, found->second);
      }
    }
    return SendJson(response, {}, "[" + answer + "]");
  }
  http::Headers headers;
  headers.Set("X-Repo-Commit", commit);
  auto found = files->find(route->path);
  if (found == files->end()) {
    headers.Set("X-Error-Code", "EntryNotFound");
    headers.Set("X-Error-Message", "Entry not found");
    return (void)response.Send(404, std::move(headers), {});
  }
  const std::string& content = found->second;
  const bool large = content.size() >= options_.large_from;
  headers.Set("ETag", fmt::format("\"{}\"", GitBlob(content)));
  if (route->call == "resolve-cache") return ServeFile(request, response, content, std::move(headers), fault);
  headers.Set("X-Linked-Etag", fmt::format("\"{}\"", large ? Sha256Of(content) : GitBlob(content)));
  headers.Set("X-Linked-Size", std::to_string(content.size()));
  headers.Set("Location",
              large ? fmt::format("http://{}/{}?signature={}", storage_->address(), Sha256Of(content), signature)
                    : fmt::format("{}{}/@/{}/{}", kCache, route->repository, commit,
                                  PercentEncode(route->path, /*keep_slash=*/true)));
  (void)response.Send(large ? 302 : 307, std::move(headers), {});
}

void HubServer::ServeTree(const Route& route, http::ServerRequest& request, http::ServerResponse& response,
                          const FileContents& files) {
  const std::string prefix = route.path.empty() ? "" : route.path + "/";
  const bool recursive = Query(request, "recursive") == "true";
  std::vector<std::string> entries;
  std::set<std::string> folders;
  for (const auto& [path, content] : files) {
    if (!path.starts_with(prefix)) continue;
    for (std::size_t slash = path.find('/', prefix.size()); slash != path.npos; slash = path.find('/', slash + 1)) {
      const std::string folder = path.substr(0, slash);
      if (folders.insert(folder).second) {
        entries.push_back(DumpJson({{"type", "directory"}, {"oid", GitBlob(folder)}, {"size", 0}, {"path", folder}}));
      }
      if (!recursive) break;
    }
    if (recursive || path.find('/', prefix.size()) == path.npos) entries.push_back(EntryOf(path, content));
  }
  if (entries.empty() && !prefix.empty()) return Refuse(response, 404, "EntryNotFound", "Entry not found");
  std::ranges::reverse(entries);  // the order of pages is the hub's own business
  const std::string cursor = Query(request, "cursor");
  std::size_t from = 0;
  std::from_chars(cursor.data(), cursor.data() + cursor.size(), from);
  const std::size_t end = std::min(entries.size(), from + options_.page_files);
  std::string page;
  for (std::size_t i = from; i < end; ++i) page += (page.empty() ? "" : ",") + entries[i];
  http::Headers headers;
  if (end < entries.size() || options_.endless_trees) {
    headers.Set("Link", fmt::format("<{}{}?recursive={}&expand=false&cursor={}>; rel=\"next\"", url(), request.path(),
                                    recursive, end % entries.size()));
  }
  SendJson(response, std::move(headers), "[" + page + "]");
}

void HubServer::ServeStorage(http::ServerRequest& request, http::ServerResponse& response, Fault fault) {
  std::string content;
  {
    MutexLock lock(mutex_);
    auto found = stored_.find(std::string(request.path().substr(1)));
    // As S3 does: one way of proving who asks is enough.
    if (request.headers().Has("authorization")) return (void)response.Send(400, {}, {});
    if (Query(request, "signature") != std::to_string(signature_) || found == stored_.end()) {
      return (void)response.Send(403, {}, {});
    }
    content = found->second;
  }
  ServeFile(request, response, content, {}, fault);
}

void HubServer::ServeFile(http::ServerRequest& request, http::ServerResponse& response, const std::string& content,
                          http::Headers headers, Fault fault) {
  headers.Set("Accept-Ranges", "bytes");
  std::string body = content;
  int status = 200;
  if (const std::string_view text = request.headers().Get("range"); !text.empty()) {
    auto range = ParseRange(text, content.size());
    if (!range) return (void)response.Send(416, std::move(headers), {});
    const auto [first, length] = *range;
    headers.Set("Content-Range", fmt::format("bytes {}-{}/{}", first, first + length - 1, content.size()));
    body = content.substr(first, length);
    status = 206;
  }
  if (fault == Fault::kDamage && !body.empty()) body[body.size() / 2] = static_cast<char>(body[body.size() / 2] ^ 1);
  if (fault != Fault::kCut) return (void)response.Send(status, std::move(headers), AsBytes(body));
  (void)response.Start(status, std::move(headers), body.size());
  (void)response.Write(AsBytes(body).first(body.size() / 2));
  response.Abort(/*reset=*/true);
}

}  // namespace millrace::object::hf::testing
