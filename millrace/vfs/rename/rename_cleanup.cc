#include "millrace/vfs/rename/rename_cleanup.h"

#include <functional>
#include <set>
#include <span>
#include <unordered_map>

#include "millrace/object/blocking.h"
#include "millrace/transfer/stream/window.h"
#include "millrace/vfs/metadata/attributes.h"

namespace millrace::vfs {
namespace {

constexpr int kParallelChecks = 32;  ///< Heads at the same time; a guess

/// Objects of one directory by their names below it.
using Names = std::unordered_map<std::string, object::ObjectInfo>;
using Page = std::span<const object::ObjectInfo>;

/// Visits the objects below `here`, page by page. Each page comes with the objects below `there` in the same range of
/// names, which are listed just after the page.
Status ForEachPage(object::ReadStore& store, const std::string& here, const std::string& there,
                   const object::Call& call, const std::function<Status(Page, const Names&)>& visit) {
  std::string continuation, last;
  do {
    const object::ListPage page = MR_TRY(object::List(store, {.prefix = here, .continuation = continuation}, call));
    continuation = page.continuation;
    if (page.objects.empty()) continue;
    const std::string end = there + page.objects.back().key.substr(here.size());
    Names others;
    auto collect = [&](const object::ListPage& listed) {
      for (const auto& info : listed.objects) {
        if (info.key > end) return false;
        others.emplace(info.key.substr(there.size()), info);
      }
      return true;
    };
    MR_TRY(object::ListAll(store, {.prefix = there, .start_after = last}, collect, call));
    MR_TRY(visit(page.objects, others));
    last = end;
  } while (!continuation.empty());
  return {};
}

Status DeleteAll(object::Store& store, RenameLease& lease, std::vector<std::string> keys, const object::Call& call) {
  if (keys.empty()) return {};
  const object::Call guarded = MR_TRY(lease.Guard(call));
  auto failed = MR_TRY(object::DeleteMany(store, std::move(keys), guarded));
  if (failed.empty()) return {};
  return Fail(
      failed.front().error.Context(fmt::format("deleting {} and {} more", failed.front().key, failed.size() - 1)));
}

bool IsMarker(std::string_view key) { return key.ends_with('/'); }

/// Returns the ETag of a copy's source; empty for a marker without a source; nothing if this rename did not make it.
std::optional<std::string> SourceOfCopy(const object::ObjectInfo& copy, const RenameRecord& record) {
  auto id = copy.metadata.find(kRenameKey);
  if (id == copy.metadata.end() || id->second != record.id) return std::nullopt;
  auto source = copy.metadata.find(kRenameSourceKey);
  return source == copy.metadata.end() ? "" : source->second;
}

class SourceCleanup {
 public:
  SourceCleanup(object::Store& store, RenameLease& lease, const object::Call& call)
      : store_(store), lease_(lease), record_(lease.record()), call_(call) {
    for (const auto& source : record_->sources) copied_.emplace(source.name, &source);
  }

  Status Run() {
    return ForEachPage(store_, record_->from, record_->to, call_,
                       [this](Page page, const Names& copies) { return Visit(page, copies); });
  }

 private:
  Status Visit(Page page, const Names& copies) {
    std::vector<std::string> going;
    Mutex mutex;
    transfer::Window window(kParallelChecks, call_);
    for (const object::ObjectInfo& info : page) {
      const std::string name = info.key.substr(record_->from.size());
      auto source = copied_.find(name);
      auto copy = copies.find(name);
      if (source == copied_.end() || copy == copies.end()) continue;
      const RenameRecord::Source& version = *source->second;
      if (version.etag != info.etag || version.modified != info.modified) continue;
      const bool marker = IsMarker(info.key) || name.empty();
      if (!marker && copy->second.size != info.size) continue;
      if (!version.copy_etag.empty() && version.copy_etag == copy->second.etag) {
        MutexLock lock(mutex);
        going.push_back(info.key);
        continue;
      }
      if (!window.Enter()) break;
      store_.Head(copy->second.key, window.call(), [&, key = info.key, etag = info.etag](auto head) {
        if (!head) return window.Leave(Fail(head.error()));
        if (*head && SourceOfCopy(**head, *record_) == etag) {
          MutexLock lock(mutex);
          going.push_back(key);
        }
        window.Leave({});
      });
    }
    MR_TRY(window.Finish());
    return DeleteAll(store_, lease_, std::move(going), call_);
  }

  object::Store& store_;
  RenameLease& lease_;
  const std::shared_ptr<const RenameRecord> record_;
  const object::Call& call_;
  std::unordered_map<std::string_view, const RenameRecord::Source*> copied_;
};

class CopyCleanup {
 public:
  CopyCleanup(object::Store& store, RenameLease& lease, const object::Call& call)
      : store_(store), lease_(lease), record_(lease.record()), call_(call) {}

  Status Run() {
    MR_TRY(ForEachPage(store_, record_->to, record_->from, call_,
                       [this](Page page, const Names& sources) { return Visit(page, sources); }));
    std::erase_if(markers_, [this](const std::string& key) { return busy_.contains(key); });
    return DeleteAll(store_, lease_, std::move(markers_), call_);
  }

 private:
  Status Visit(Page page, const Names& sources) {
    std::vector<std::string> going;
    Mutex mutex;
    transfer::Window window(kParallelChecks, call_);
    for (const object::ObjectInfo& info : page) {
      auto source = sources.find(info.key.substr(record_->to.size()));
      if (!IsMarker(info.key) && source == sources.end()) {
        MutexLock lock(mutex);
        Stays(info.key);
        continue;
      }
      if (!window.Enter()) break;
      const object::ObjectInfo* original = source == sources.end() ? nullptr : &source->second;
      store_.Head(info.key, window.call(), [&, original](auto head) {
        if (!head) return window.Leave(Fail(head.error()));
        if (*head) {
          MutexLock lock(mutex);
          Decide(**head, original, going);
        }
        window.Leave({});
      });
    }
    MR_TRY(window.Finish());
    return DeleteAll(store_, lease_, std::move(going), call_);
  }

  void Decide(const object::ObjectInfo& copy, const object::ObjectInfo* original, std::vector<std::string>& going) {
    const auto source = SourceOfCopy(copy, *record_);
    const bool marker = IsMarker(copy.key);
    const bool keeps_directory = copy.key == record_->to && record_->replaced_empty;
    const bool made_here = marker && source && source->empty();
    const bool spare =
        original != nullptr && source && *source == original->etag && (marker || copy.size == original->size);
    if (keeps_directory || !(made_here || spare)) return Stays(copy.key);
    (marker ? markers_ : going).push_back(copy.key);
  }

  /// Keeps the markers of all directories above the object.
  void Stays(std::string_view key) {
    for (std::size_t slash = key.rfind('/'); slash != std::string_view::npos && slash + 1 >= record_->to.size();
         slash = slash == 0 ? std::string_view::npos : key.rfind('/', slash - 1)) {
      busy_.insert(std::string(key.substr(0, slash + 1)));
    }
  }

  object::Store& store_;
  RenameLease& lease_;
  const std::shared_ptr<const RenameRecord> record_;
  const object::Call& call_;
  std::vector<std::string> markers_;  ///< markers that the rename made
  std::set<std::string> busy_;        ///< directories in which something stays
};

}  // namespace

Status DeleteSources(object::Store& store, RenameLease& lease, const object::Call& call) {
  return SourceCleanup(store, lease, call).Run();
}

Status DeleteCopies(object::Store& store, RenameLease& lease, const object::Call& call) {
  return CopyCleanup(store, lease, call).Run();
}

Status SettleRename(object::Store& store, RenameLease& lease, const object::Call& call) {
  MR_TRY(lease.Renew(call));
  MR_TRY(lease.record()->committed ? DeleteSources(store, lease, call) : DeleteCopies(store, lease, call));
  return lease.Remove(call);
}

}  // namespace millrace::vfs
