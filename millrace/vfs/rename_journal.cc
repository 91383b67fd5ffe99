#include "millrace/vfs/rename_journal.h"

#include <unordered_map>

#include "millrace/base/json.h"
#include "millrace/object/blocking.h"
#include "millrace/transfer/window.h"
#include "millrace/vfs/names.h"

namespace millrace::vfs {
namespace {

constexpr std::string_view kJournalFormat = "millrace-rename-1";
constexpr std::uint64_t kMaxJournalBytes = 256 * kMiB;
constexpr Duration kAbandoned = std::chrono::seconds(60);  ///< owners touch their records more often
constexpr int kParallel = 32;

std::string JournalPrefix(const std::string& root) { return fmt::format("{}{}/renames/", root, kHiddenName); }

std::int64_t Nanos(WallTime time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

WallTime FromNanos(std::int64_t nanos) {
  return WallTime(std::chrono::duration_cast<WallTime::duration>(std::chrono::nanoseconds(nanos)));
}

Result<bool> JsonBool(const Json& json, std::string_view key) {
  const Json* member = JsonFind(json, key);
  if (member == nullptr || !member->is_boolean()) return Fail(Code::kInvalidArgument, "{} must be true or false", key);
  return member->get<bool>();
}

Status DeleteAll(object::Store& store, std::vector<std::string> keys, const object::Call& call) {
  if (keys.empty()) return {};
  auto failed = MR_TRY(object::DeleteMany(store, std::move(keys), call));
  if (failed.empty()) return {};
  return Fail(
      failed.front().error.Context(fmt::format("deleting {} and {} more", failed.front().key, failed.size() - 1)));
}

}  // namespace

std::string EncodeRename(const RenameRecord& record) {
  Json json = {{"format", kJournalFormat},     {"id", record.id}, {"owner", record.owner},
               {"from", record.from},          {"to", record.to}, {"replaced_empty", record.replaced_empty},
               {"committed", record.committed}};
  Json sources = Json::array();
  for (const auto& source : record.sources) {
    sources.push_back(Json::array({source.name, source.etag, Nanos(source.modified)}));
  }
  json["sources"] = std::move(sources);
  return DumpJson(json);
}

Result<RenameRecord> DecodeRename(std::string_view text, std::string_view what) {
  Json json = MR_TRY(ParseJson(text, what, {.depth = 4}));
  if (MR_TRY(JsonString(json, "format")) != kJournalFormat) {
    return Fail(Code::kUnsupported, "{} is not of the format {}", what, kJournalFormat);
  }
  RenameRecord record{.id = MR_TRY(JsonString(json, "id")),
                      .owner = MR_TRY(JsonString(json, "owner")),
                      .from = MR_TRY(JsonString(json, "from")),
                      .to = MR_TRY(JsonString(json, "to")),
                      .replaced_empty = MR_TRY(JsonBool(json, "replaced_empty")),
                      .committed = MR_TRY(JsonBool(json, "committed")),
                      .sources = {}};
  if (record.id.empty() || !record.from.ends_with('/') || !record.to.ends_with('/') ||
      record.to.starts_with(record.from) || record.from.starts_with(record.to)) {
    return Fail(Code::kCorrupt, "{} names no two directories", what);
  }
  const Json* sources = JsonFind(json, "sources");
  if (sources == nullptr || !sources->is_array()) return Fail(Code::kCorrupt, "{} has no sources", what);
  for (const Json& source : *sources) {
    if (!source.is_array() || source.size() != 3 || !source[0].is_string() || !source[1].is_string() ||
        !source[2].is_number_integer()) {
      return Fail(Code::kCorrupt, "{} has a source that is none", what);
    }
    record.sources.push_back(
        {source[0].get<std::string>(), source[1].get<std::string>(), FromNanos(source[2].get<std::int64_t>())});
  }
  return record;
}

Result<RenameJournal> RenameJournal::Begin(object::Store& store, const std::string& root, const RenameRecord& record,
                                           const object::Call& call) {
  RenameJournal journal(store, JournalPrefix(root) + record.id, "");
  const std::string text = EncodeRename(record);
  auto put = MR_TRY(object::Put(store, journal.key_, AsBytes(text), {.if_none_match = true}, call));
  journal.etag_ = put.etag;
  return journal;
}

Status RenameJournal::Write(const RenameRecord& record, const object::Call& call) {
  const std::string text = EncodeRename(record);
  auto put = object::Put(store_, key_, AsBytes(text), {.if_match = etag_}, call);
  if (!put) {
    // The answer may have been lost, and a repetition refused because the first try was done.
    auto now = object::GetAll(store_, key_, kMaxJournalBytes, call);
    if (!now || !*now || (*now)->bytes != text) return Fail(put.error());
    etag_ = (*now)->info.etag;
    return {};
  }
  etag_ = put->etag;
  return {};
}

Status RenameJournal::Remove(const object::Call& call) { return object::Delete(store_, key_, call); }

Status DeleteSources(object::Store& store, const RenameRecord& record, const object::Call& call) {
  std::unordered_map<std::string_view, const RenameRecord::Source*> copied;
  for (const auto& source : record.sources) copied.emplace(source.name, &source);
  std::vector<std::string> keys;
  MR_TRY(object::ListAll(
      store, {.prefix = record.from},
      [&](const object::ListPage& page) {
        for (const auto& info : page.objects) {
          auto found = copied.find(std::string_view(info.key).substr(record.from.size()));
          if (found == copied.end()) continue;
          const auto& source = *found->second;
          if (source.etag == info.etag && source.modified == info.modified) keys.push_back(info.key);
        }
        return true;
      },
      call));
  return DeleteAll(store, std::move(keys), call);
}

Status DeleteCopies(object::Store& store, const RenameRecord& record, const object::Call& call) {
  std::unordered_map<std::string, std::uint64_t> sources;  // sizes
  MR_TRY(object::ListAll(
      store, {.prefix = record.from},
      [&](const object::ListPage& page) {
        for (const auto& info : page.objects) sources.emplace(info.key.substr(record.from.size()), info.size);
        return true;
      },
      call));
  std::vector<std::string> candidates;
  MR_TRY(object::ListAll(
      store, {.prefix = record.to},
      [&](const object::ListPage& page) {
        for (const auto& info : page.objects) candidates.push_back(info.key);
        return true;
      },
      call));
  Mutex mutex;
  std::vector<std::string> keys;
  transfer::Window window(kParallel, call);
  for (const std::string& key : candidates) {
    if (!window.Enter()) break;
    store.Head(key, window.call(), [&](auto info) {
      if (!info) return window.Leave(Fail(info.error()));
      if (*info) {
        const object::ObjectInfo& copy = **info;
        auto id = copy.metadata.find(kRenameKey);
        auto source = sources.find(copy.key.substr(record.to.size()));
        const bool marker = copy.key.ends_with('/');
        const bool keeps_directory = copy.key == record.to && record.replaced_empty;
        const bool spare = marker ? !keeps_directory : source != sources.end() && source->second == copy.size;
        if (id != copy.metadata.end() && id->second == record.id && spare) {
          MutexLock lock(mutex);
          keys.push_back(copy.key);
        }
      }
      window.Leave({});
    });
  }
  MR_TRY(window.Finish());
  return DeleteAll(store, std::move(keys), call);
}

/// Recovery of one record.
class RenameRecovery {
 public:
  RenameRecovery(object::Store& store, const std::string& owner, const OwnerAlive& alive, const Clock& clock)
      : store_(store), owner_(owner), alive_(alive), clock_(clock) {}

  Status Recover(const std::string& key, RecoveredRenames& counts, const object::Call& call) {
    auto content = MR_TRY(object::GetAll(store_, key, kMaxJournalBytes, call));
    if (!content) return {};  // it has just ended
    auto record = DecodeRename(content->bytes, key);
    if (!record || !IsAbandoned(*record, content->info)) {
      ++counts.left;
      return {};
    }
    RenameJournal journal(store_, key, content->info.etag);
    record->owner = owner_;
    if (Status taken = journal.Write(*record, call); !taken) {  // its owner lives, or another one is recovering it
      if (taken.error().code() != Code::kPreconditionFailed) return taken;
      ++counts.left;
      return {};
    }
    MR_TRY(record->committed ? DeleteSources(store_, *record, call) : DeleteCopies(store_, *record, call));
    MR_TRY(journal.Remove(call));
    ++(record->committed ? counts.finished : counts.rolled_back);
    return {};
  }

 private:
  bool IsAbandoned(const RenameRecord& record, const object::ObjectInfo& info) const {
    if (auto alive = alive_ ? alive_(record.owner) : std::nullopt) return !*alive;
    return clock_.Wall() - info.modified > kAbandoned;
  }

  object::Store& store_;
  const std::string& owner_;
  const OwnerAlive& alive_;
  const Clock& clock_;
};

Result<RecoveredRenames> RecoverRenames(object::Store& store, const std::string& root, const std::string& owner,
                                        const OwnerAlive& alive, const Clock& clock, const object::Call& call) {
  std::vector<std::string> keys;
  MR_TRY(object::ListAll(
      store, {.prefix = JournalPrefix(root)},
      [&](const object::ListPage& page) {
        for (const auto& info : page.objects) keys.push_back(info.key);
        return true;
      },
      call));
  RecoveredRenames counts;
  RenameRecovery recovery(store, owner, alive, clock);
  for (const std::string& key : keys) MR_TRY(recovery.Recover(key, counts, call));
  return counts;
}

Result<RecoveredRenames> RecoverAllRenames(object::Store& store, const Options& options, const object::Call& call) {
  std::vector<std::string> roots = {options.prefix};
  if (options.buckets_at_top) {
    roots.clear();
    auto collect = [&](const object::ListPage& page) {
      roots.insert(roots.end(), page.common_prefixes.begin(), page.common_prefixes.end());
      return true;
    };
    MR_TRY(object::ListAll(store, {.prefix = options.prefix, .delimiter = "/"}, collect, call));
  }
  RecoveredRenames sum;
  for (const std::string& root : roots) {
    auto done = RecoverRenames(store, root, options.owner, options.owner_alive, *options.clock, call);
    if (!done && roots.size() == 1) return done;
    if (!done) {  // one bucket of many that may not be read
      options.log.Debug("renames in a bucket could not be looked for", {{"bucket", root}, {"reason", done.error()}});
      continue;
    }
    sum.finished += done->finished;
    sum.rolled_back += done->rolled_back;
    sum.left += done->left;
  }
  return sum;
}

std::string JournalRoot(const Options& options, std::string_view path) {
  if (!options.buckets_at_top) return options.prefix;
  return std::string(path.substr(0, path.find('/', options.prefix.size()) + 1));
}

}  // namespace millrace::vfs
