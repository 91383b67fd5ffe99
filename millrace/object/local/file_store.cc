#include "millrace/object/local/file_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <list>

#include "millrace/base/files/special_file.h"
#include "millrace/base/threads/sync.h"
#include "millrace/object/local/file_io.h"
#include "millrace/object/local/mount_hints.h"
#include "millrace/object/local/paths.h"
#include "millrace/object/local/uploads.h"
#include "millrace/object/local/walk.h"
#include "millrace/object/rules.h"
#include "millrace/object/support/listing.h"
#include "millrace/object/support/work_queue.h"

namespace millrace::object {
namespace {

/// Each parked walker holds the names of a few folders. More listings at once are rare.
constexpr std::size_t kParkedListings = 8;
/// Another call may prune a folder before a file is created in it. Then the folder is made again. The number only ends
/// a race that no scheduler keeps up for so long.
constexpr int kFolderAttempts = 32;

class FileStore final : public Store {
 public:
  FileStore(FileStoreOptions options, RootFolder root)
      : options_(std::move(options)),
        root_(std::move(root)),
        uploads_(root_, options_.durable),
        queue_("file-store", options_.threads) {}

  /// Callers append a slash and the key.
  std::string Describe() const override { return "file://" + (root_.path() == "/" ? "" : root_.path()); }
  Limits limits() const override { return {.min_part = 1}; }
  void WillRead(std::span<const std::string> keys) override;

  void Head(std::string key, Call call, Done<std::optional<ObjectInfo>> done) override {
    Run(std::move(call), std::move(done), [this, key = std::move(key)](const KeepGoing&) { return DoHead(key); });
  }
  void Get(std::string key, GetOptions options, MutableByteSpan into, Call call,
           Done<std::optional<GetResult>> done) override {
    Run(std::move(call), std::move(done),
        [this, key = std::move(key), options = std::move(options), into](const KeepGoing& keep_going) {
          return DoGet(key, options, into.size(), [&](int fd, ByteRange range) {
            return ReadPieces(fd, into.first(range.length), range.offset, keep_going, root_.PathOf(key));
          });
        });
  }
  void GetTo(std::string key, GetOptions options, std::uint64_t limit, Sink& sink, Call call,
             Done<std::optional<GetResult>> done) override {
    Run(std::move(call), std::move(done),
        [this, key = std::move(key), options = std::move(options), limit, &sink](const KeepGoing& keep_going) {
          return DoGet(key, options, limit, [&](int fd, ByteRange range) {
            return PassPieces(fd, range, sink, keep_going, root_.PathOf(key));
          });
        });
  }
  void List(ListRequest request, Call call, Done<ListPage> done) override {
    Run(std::move(call), std::move(done),
        [this, request = std::move(request)](const KeepGoing& keep_going) { return DoList(request, keep_going); });
  }
  void Put(std::string key, Payload body, PutOptions options, Call call, Done<PutResult> done) override {
    Run(std::move(call), std::move(done),
        [this, key = std::move(key), body, options = std::move(options)](const KeepGoing& keep_going) {
          return Write(key, options, [&](int fd) { return WritePieces(fd, body, 0, keep_going, root_.PathOf(key)); });
        });
  }
  void Delete(std::string key, Call call, Done<void> done) override {
    Run(std::move(call), std::move(done), [this, key = std::move(key)](const KeepGoing&) { return DoDelete(key); });
  }
  void DeleteMany(std::vector<std::string> keys, Call call, Done<std::vector<DeleteFailure>> done) override {
    Run(std::move(call), std::move(done),
        [this, keys = std::move(keys)](const KeepGoing& keep_going) -> Result<std::vector<DeleteFailure>> {
          std::vector<DeleteFailure> failures;
          for (const std::string& key : keys) {
            MR_TRY(keep_going());
            if (Status deleted = DoDelete(key); !deleted) failures.push_back({key, deleted.error()});
          }
          return failures;
        });
  }
  void Copy(std::string source, std::string destination, CopyOptions options, Call call,
            Done<PutResult> done) override {
    Run(std::move(call), std::move(done),
        [this, source = std::move(source), destination = std::move(destination), options = std::move(options)](
            const KeepGoing& keep_going) { return DoCopy(source, destination, options, keep_going); });
  }
  void CreateMultipart(std::string key, PutOptions options, Call call, Done<std::string> done) override {
    Run(std::move(call), std::move(done),
        [this, key = std::move(key), options = std::move(options)](const KeepGoing&) -> Result<std::string> {
          MR_TRY(CheckKey(key));
          return uploads_.Create(key, options);
        });
  }
  void UploadPart(std::string key, std::string upload_id, int number, Payload body, Call call,
                  Done<PartInfo> done) override {
    Run(std::move(call), std::move(done),
        [this, key = std::move(key), id = std::move(upload_id), number, body](const KeepGoing& keep_going) {
          return uploads_.AddPart(key, id, number, body.size(), Stamp(), [&](int fd, std::uint64_t offset) {
            return WritePieces(fd, body, offset, keep_going, root_.PathOf(key));
          });
        });
  }
  void CopyPart(std::string key, std::string upload_id, int number, std::string source, ByteRange range,
                CopyOptions options, Call call, Done<PartInfo> done) override {
    Run(std::move(call), std::move(done),
        [this, key = std::move(key), id = std::move(upload_id), number, source = std::move(source), range,
         options = std::move(options)](const KeepGoing& keep_going) {
          return DoCopyPart(key, id, number, source, range, options, keep_going);
        });
  }
  void CompleteMultipart(std::string key, std::string upload_id, std::vector<PartInfo> parts, PutOptions options,
                         Call call, Done<PutResult> done) override {
    Run(std::move(call), std::move(done),
        [this, key = std::move(key), id = std::move(upload_id), parts = std::move(parts), options = std::move(options)](
            const KeepGoing& keep_going) { return DoComplete(key, id, parts, options, keep_going); });
  }
  void AbortMultipart(std::string key, std::string upload_id, Call call, Done<void> done) override {
    Run(std::move(call), std::move(done),
        [this, key = std::move(key), id = std::move(upload_id)](const KeepGoing&) -> Status {
          MR_TRY(uploads_.Remove(key, id));
          Prune(MR_TRY(PathOfKey(key)).folder);
          return {};
        });
  }
  void ListParts(std::string key, std::string upload_id, Call call, Done<std::vector<PartInfo>> done) override {
    Run(std::move(call), std::move(done),
        [this, key = std::move(key), id = std::move(upload_id)](const KeepGoing&) { return uploads_.Parts(key, id); });
  }
  void ListUploads(std::string prefix, Call call, Done<std::vector<UploadInfo>> done) override {
    Run(std::move(call), std::move(done),
        [this, prefix = std::move(prefix)](const KeepGoing& keep_going) { return uploads_.List(prefix, keep_going); });
  }
  Result<std::string> Presign(std::string_view, std::string_view, Duration) override {
    return Fail(Code::kUnsupported, "{} is a local folder: there is no URL to sign", Describe());
  }

 private:
  template <class T, class Work>
  void Run(Call call, Done<T> done, Work work) {
    queue_.Submit([this, call = std::move(call), done = std::move(done), work = std::move(work)]() mutable {
      KeepGoing keep_going = [&]() -> Status {
        if (queue_.closing()) return Fail(Code::kCancelled, "{} is closing", Describe());
        return CheckCall(call, *options_.clock);
      };
      if (Status live = keep_going(); !live) return done(std::unexpected(live.error()));
      done(work(keep_going));
    });
  }

  /// An open object and its info without attributes. No descriptor if the object does not exist.
  struct Opened {
    UniqueFd fd;
    ObjectInfo info;
  };
  Result<Opened> Open(const std::string& key) const {
    MR_TRY(CheckKey(key));
    Opened opened{MR_TRY(root_.TryOpen(MR_TRY(PathOfKey(key)).Full(), O_RDONLY | O_NONBLOCK)), {}};
    if (!opened.fd) return opened;
    struct stat status;
    if (fstat(opened.fd.get(), &status) != 0)
      return Fail(ErrnoError(errno, "reading the state of " + root_.PathOf(key)));
    if (!S_ISREG(status.st_mode)) return Opened{};
    opened.info = {
        .key = key,
        .size = static_cast<std::uint64_t>(status.st_size),
        .etag = FileETag(status),
        .modified = WallTime(std::chrono::duration_cast<WallTime::duration>(
            std::chrono::seconds(status.st_mtim.tv_sec) + std::chrono::nanoseconds(status.st_mtim.tv_nsec)))};
    return opened;
  }

  Result<std::optional<ObjectInfo>> DoHead(const std::string& key) const {
    Opened opened = MR_TRY(Open(key));
    if (!opened.fd) return std::nullopt;
    MR_TRY(ReadAttributes(opened.fd.get(), opened.info));
    return std::move(opened.info);
  }

  /// `read` reads a range of at most `limit` bytes from a descriptor and returns the number of bytes.
  Result<std::optional<GetResult>> DoGet(const std::string& key, const GetOptions& options, std::uint64_t limit,
                                         const std::function<Result<std::uint64_t>(int, ByteRange)>& read) const {
    Opened opened = MR_TRY(Open(key));
    if (!opened.fd) return std::nullopt;
    MR_TRY(CheckConditions(key, options.if_match, false, opened.info.etag));
    ByteRange range = MR_TRY(FitRange(options.range, opened.info.size, limit));
    std::uint64_t bytes = MR_TRY(read(opened.fd.get(), range));
    struct stat after;
    if (fstat(opened.fd.get(), &after) != 0)
      return Fail(ErrnoError(errno, "reading the state of " + root_.PathOf(key)));
    if (FileETag(after) != opened.info.etag) {
      return options.if_match.empty()
                 ? Fail(Code::kUnavailable, "{} was written to while it was read; read it again", key)
                 : Fail(Code::kPreconditionFailed, "{} was written to while it was read; read it again", key);
    }
    MR_TRY(ReadAttributes(opened.fd.get(), opened.info));
    return GetResult{bytes, std::move(opened.info)};
  }

  Result<ListPage> DoList(const ListRequest& request, const KeepGoing& keep_going) MR_EXCLUDES(listings_mutex_) {
    PageBuilder page = MR_TRY(PageBuilder::Start(request));
    std::unique_ptr<TreeWalker> walker = Resume(request);
    if (!walker) walker = std::make_unique<TreeWalker>(root_, TreeWalker::Options{.prefix = request.prefix});
    walker->Seek(page.start());
    for (;;) {
      MR_TRY(keep_going());
      const ObjectInfo* file = MR_TRY(walker->Peek());
      if (!file) return page.TakePage();
      PageBuilder::Next step = page.Offer(*file);
      if (step == PageBuilder::Next::kDone) break;
      walker->Advance();
      if (step == PageBuilder::Next::kSkip) walker->Seek(page.start());
    }
    ListPage result = page.TakePage();
    Park(request, result.continuation, std::move(walker));
    return result;
  }

  /// The key of a parked walker. A listing with a next page parks its walker, so that a large folder is read and sorted
  /// once for all pages.
  static std::string ListingName(const ListRequest& request, const std::string& continuation) {
    return fmt::format("{}\n{}\n{}", continuation, request.prefix, request.delimiter);
  }
  std::unique_ptr<TreeWalker> Resume(const ListRequest& request) MR_EXCLUDES(listings_mutex_) {
    if (request.continuation.empty()) return nullptr;
    MutexLock lock(listings_mutex_);
    std::string name = ListingName(request, request.continuation);
    auto found = std::ranges::find(listings_, name, &Parked::name);
    if (found == listings_.end()) return nullptr;
    std::unique_ptr<TreeWalker> walker = std::move(found->walker);
    listings_.erase(found);
    return walker;
  }
  void Park(const ListRequest& request, const std::string& continuation, std::unique_ptr<TreeWalker> walker)
      MR_EXCLUDES(listings_mutex_) {
    if (continuation.empty()) return;
    std::unique_ptr<TreeWalker> evicted;
    MutexLock lock(listings_mutex_);
    listings_.push_back({ListingName(request, continuation), std::move(walker)});
    if (listings_.size() <= kParkedListings) return;
    evicted = std::move(listings_.front().walker);
    listings_.pop_front();
  }

  /// Fills a pending file beside the key's path with `fill(fd)` and publishes it under the conditions.
  template <class Fill>
  Result<PutResult> Write(const std::string& key, const PutOptions& options, Fill fill) {
    MR_TRY(CheckKey(key));
    KeyPath path = MR_TRY(PathOfKey(key));
    for (int attempt = 1;; ++attempt) {
      UniqueFd folder = MR_TRY(root_.MakeFolder(path.folder));
      auto file = PendingFile::Create(folder.get(), root_.PathOf(key));
      if (!file && file.error().code() == Code::kNotFound && attempt < kFolderAttempts) continue;
      if (!file) return Fail(file.error());
      MR_TRY(fill(file->fd()));
      return Publish(*file, folder.get(), path, key, options);
    }
  }

  /// Publishes the file that the parts of an upload were written into.
  Result<PutResult> Rename(const FileUploads::Assembly& assembly, const std::string& key, const PutOptions& options) {
    KeyPath path = MR_TRY(PathOfKey(key));
    UniqueFd folder = MR_TRY(root_.MakeFolder(path.folder));
    const int upload = assembly.folder.get();
    PendingFile file = MR_TRY(PendingFile::Take(folder.get(), upload, FileUploads::kWhole, root_.PathOf(key)));
    auto published = Publish(file, folder.get(), path, key, options);
    if (!published) file.PutBack(upload, FileUploads::kWhole);
    return published;
  }

  Result<PutResult> Publish(PendingFile& file, int folder, const KeyPath& path, const std::string& key,
                            const PutOptions& conditions) {
    const std::string path_name = root_.PathOf(key);
    MR_TRY(WriteAttributes(file.fd(), conditions.content_type, conditions.metadata, path_name));
    const auto replaced = MR_TRY(FindReplaced(folder, path.name, path_name));
    if (replaced) MR_TRY(KeepAccess(file.fd(), *replaced, 0, path_name));
    MR_TRY(file.Seal(Stamp(), options_.durable, path_name));
    // Every writer takes this lock, so none writes between the check and the rename. Closing the descriptor releases
    // it.
    if (flock(folder, LOCK_EX) != 0) return Fail(ErrnoError(errno, "locking the folder of " + path_name));
    if (conditions.if_none_match || !conditions.if_match.empty()) {
      Opened now = MR_TRY(Open(key));
      MR_TRY(CheckConditions(key, conditions.if_match, conditions.if_none_match, now.info.etag));
    }
    MR_TRY(file.Publish(path.name, options_.prune_folders, path_name));
    if (options_.durable && fsync(folder) != 0) return Fail(ErrnoError(errno, "syncing the folder of " + path_name));
    struct stat status;
    if (fstat(file.fd(), &status) != 0) return Fail(ErrnoError(errno, "reading the state of " + path_name));
    return PutResult{FileETag(status)};
  }

  Status DoDelete(const std::string& key) {
    MR_TRY(CheckKey(key));
    KeyPath path = MR_TRY(PathOfKey(key));
    UniqueFd folder = MR_TRY(root_.TryOpen(path.folder, O_RDONLY | O_DIRECTORY));
    if (!folder) return {};
    if (flock(folder.get(), LOCK_EX) != 0) return Fail(ErrnoError(errno, "locking the folder of " + root_.PathOf(key)));
    struct stat status;
    const bool there = fstatat(folder.get(), path.name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0;
    if (there && !S_ISREG(status.st_mode) && !S_ISLNK(status.st_mode)) return {};  // no object: a folder, a device
    if (unlinkat(folder.get(), path.name.c_str(), 0) != 0) {
      if (errno == ENOENT) return {};
      return Fail(ErrnoError(errno, "deleting " + root_.PathOf(key)));
    }
    if (options_.durable && fsync(folder.get()) != 0) {
      return Fail(ErrnoError(errno, "syncing the folder of " + root_.PathOf(key)));
    }
    Prune(path.folder);
    return {};
  }

  /// Removes the folder and the folders above it, up to the first that is not empty.
  void Prune(std::string folder) const {
    while (options_.prune_folders && !folder.empty()) {
      std::size_t slash = folder.rfind('/');
      std::string above = slash == std::string::npos ? "" : folder.substr(0, slash);
      auto parent = root_.TryOpen(above, O_RDONLY | O_DIRECTORY);
      std::string name = slash == std::string::npos ? folder : folder.substr(slash + 1);
      if (!parent || !*parent || unlinkat(parent->get(), name.c_str(), AT_REMOVEDIR) != 0) return;
      folder = above;
    }
  }

  Result<Opened> OpenSource(const std::string& source, const CopyOptions& options) const {
    if (!options.source_bucket.empty()) {
      return Fail(Code::kUnsupported, "{} cannot copy from bucket {}", Describe(), options.source_bucket);
    }
    Opened from = MR_TRY(Open(source));
    if (!from.fd)
      return Fail(Code::kNotFound, "no object {} in {} to copy; `millrace ls` lists what is there", source, Describe());
    MR_TRY(CheckConditions(source, options.source_if_match, false, from.info.etag));
    return from;
  }

  Result<PutResult> DoCopy(const std::string& source, const std::string& destination, const CopyOptions& options,
                           const KeepGoing& keep_going) {
    Opened from = MR_TRY(OpenSource(source, options));
    PutOptions put{.if_none_match = options.if_none_match};
    if (options.metadata) {
      put.content_type = options.content_type;
      put.metadata = *options.metadata;
    } else {
      MR_TRY(ReadAttributes(from.fd.get(), from.info));
      put.content_type = from.info.content_type;
      put.metadata = from.info.metadata;
    }
    return Write(destination, put,
                 [&](int fd) { return CopyPieces(from.fd.get(), {0, from.info.size}, fd, 0, keep_going, source); });
  }

  Result<PartInfo> DoCopyPart(const std::string& key, const std::string& id, int number, const std::string& source,
                              ByteRange range, const CopyOptions& options, const KeepGoing& keep_going) {
    Opened from = MR_TRY(OpenSource(source, options));
    if (ClipRange(range, from.info.size) != range) {
      return Fail(Code::kInvalidArgument, "bytes {}+{} reach beyond the {} of {}; expected a range within them",
                  range.offset, range.length, from.info.size, source);
    }
    return uploads_.AddPart(key, id, number, range.length, Stamp(), [&](int fd, std::uint64_t offset) {
      return CopyPieces(from.fd.get(), range, fd, offset, keep_going, source);
    });
  }

  Result<PutResult> DoComplete(const std::string& key, const std::string& id, const std::vector<PartInfo>& parts,
                               const PutOptions& conditions, const KeepGoing& keep_going) {
    MR_TRY(CheckPartOrder(parts, limits()));
    FileUploads::Assembly assembly = MR_TRY(uploads_.Open(key, id, parts));
    PutOptions put = assembly.options;
    put.if_match = conditions.if_match;
    put.if_none_match = conditions.if_none_match;
    auto copy = [&](int fd) -> Status {
      std::uint64_t end = 0;
      for (const FileUploads::PartRange& part : assembly.parts) {
        const UniqueFd from(openat(assembly.folder.get(), part.file.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
        if (!from) return Fail(ErrnoError(errno, "opening a part of " + root_.PathOf(key)));
        MR_TRY(CopyPieces(from.get(), part.range, fd, end, keep_going, root_.PathOf(key)));
        end += part.range.length;
      }
      return {};
    };
    PutResult result = MR_TRY(assembly.in_place ? Rename(assembly, key, put) : Write(key, put, copy));
    MR_TRY(uploads_.Remove(key, id));
    return result;
  }

  /// The current time, but later than every stamp before, so two versions of a file never share a modification time.
  WallTime Stamp() {
    std::int64_t now = options_.clock->Wall().time_since_epoch().count();
    std::int64_t last = last_stamp_.load(), next;
    do {
      next = std::max(now, last + 1);
    } while (!last_stamp_.compare_exchange_weak(last, next));
    return WallTime(WallTime::duration(next));
  }

  struct Parked {
    std::string name;
    std::unique_ptr<TreeWalker> walker;
  };

  const FileStoreOptions options_;
  const RootFolder root_;
  FileUploads uploads_;
  std::atomic<std::int64_t> last_stamp_ = 0;
  Mutex listings_mutex_;
  std::list<Parked> listings_ MR_GUARDED_BY(listings_mutex_);
  WorkQueue queue_;  // last: its destruction completes calls that use the rest
};

/// Passes the advice on if the keys lie in a Millrace mount. Other file systems refuse the request, which does no harm.
void FileStore::WillRead(std::span<const std::string> keys) {
  if (keys.empty()) return;
  std::string_view folder = std::string_view(keys.front()).substr(0, keys.front().rfind('/') + 1);
  for (const std::string& key : keys) {
    while (!key.starts_with(folder)) folder = folder.substr(0, folder.substr(0, folder.size() - 1).rfind('/') + 1);
  }
  std::vector<std::string> names;
  for (const std::string& key : keys) {
    if (auto path = PathOfKey(key.substr(folder.size()))) names.push_back(path->Full());
  }
  auto directory = root_.TryOpen(std::string(folder), O_RDONLY | O_DIRECTORY);
  if (directory && *directory) (void)WillOpen(directory->get(), names);
}

}  // namespace

Result<std::shared_ptr<Store>> OpenFileStore(FileStoreOptions options) {
  RootFolder root = MR_TRY(RootFolder::Open(options.root, options.create_root));
  return std::make_shared<FileStore>(std::move(options), std::move(root));
}

}  // namespace millrace::object
