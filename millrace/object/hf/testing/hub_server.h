// A small server for tests that speaks the hub's API over files in memory, with a second server as the storage that
// large files are redirected to.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/threads/sync.h"
#include "millrace/http/server/server.h"

namespace millrace::object::hf::testing {

using FileContents = std::map<std::string, std::string>;  ///< by path

/// Answers as huggingface.co does: revisions, trees by pages, paths, files. Files of `large_from` bytes and more are
/// redirected to the storage by signed addresses; smaller ones are redirected within the hub, and have git's hash.
/// Repositories are named "models/OWNER/NAME" and "datasets/OWNER/NAME". Thread-safe.
class HubServer {
 public:
  struct Options {
    std::string listen = "127.0.0.1:0";
    std::size_t large_from = 1000;  ///< bytes
    std::size_t page_files = 1000;  ///< entries of a page of a tree
    bool endless_trees = false;     ///< the last page of a tree leads to its first
    std::string token;              ///< who sends another one is refused
  };
  /// The fault that a request gets instead of its answer.
  enum class Fault {
    kNone,
    kThrottle,     ///< 429 with Retry-After: 0
    kUnavailable,  ///< 503
    kCut,          ///< half of the body, then the connection is reset
    kDamage,       ///< a body with one wrong byte
  };
  struct Seen {
    bool storage = false;  ///< a request to the storage, not to the hub
    std::string method, target, authorization, range;
  };

  /// Errors: those of http::Server::Start().
  static Result<std::unique_ptr<HubServer>> Start(Options options);
  ~HubServer();

  std::string url() const;  ///< "http://127.0.0.1:port"

  /// Access to a repository: for all, or with the server's token alone. A private repository does not exist for others.
  enum class Access { kPublic, kPrivate, kGated };
  void SetAccess(const std::string& repository, Access access) MR_EXCLUDES(mutex_);
  /// Makes `branch` a new commit with exactly these files; makes the repository. Returns the commit.
  std::string Commit(const std::string& repository, FileContents files, const std::string& branch = "main")
      MR_EXCLUDES(mutex_);

  /// Called for each request, on its thread; decides about its fault.
  void SetFaults(std::function<Fault(const Seen&)> faults) MR_EXCLUDES(mutex_);
  /// Signed addresses that were given out are refused from now on.
  void ExpireAddresses() MR_EXCLUDES(mutex_);
  std::vector<Seen> seen() const MR_EXCLUDES(mutex_);

 private:
  struct Repository;
  struct Route;
  using CommitFiles = std::shared_ptr<const FileContents>;

  explicit HubServer(Options options) : options_(std::move(options)) {}
  void Serve(bool storage, http::ServerRequest& request, http::ServerResponse& response);
  void ServeHub(http::ServerRequest& request, http::ServerResponse& response, Fault fault);
  void ServeStorage(http::ServerRequest& request, http::ServerResponse& response, Fault fault);
  void ServeFile(http::ServerRequest& request, http::ServerResponse& response, const std::string& content,
                 http::Headers headers, Fault fault);
  void ServeTree(const Route& route, http::ServerRequest& request, http::ServerResponse& response,
                 const FileContents& files);
  std::string EntryOf(const std::string& path, const std::string& content) const;

  const Options options_;
  mutable Mutex mutex_;
  std::map<std::string, std::shared_ptr<Repository>> repositories_ MR_GUARDED_BY(mutex_);
  std::map<std::string, std::string> stored_ MR_GUARDED_BY(mutex_);  ///< large files by SHA-256
  std::function<Fault(const Seen&)> faults_ MR_GUARDED_BY(mutex_);
  std::vector<Seen> seen_ MR_GUARDED_BY(mutex_);
  int signature_ MR_GUARDED_BY(mutex_) = 0;
  // Last, because their threads use the other members.
  std::unique_ptr<http::Server> storage_, hub_;
};

}  // namespace millrace::object::hf::testing
