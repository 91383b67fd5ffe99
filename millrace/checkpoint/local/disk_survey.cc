#include "millrace/checkpoint/local/disk_survey.h"

#include <algorithm>

#include "millrace/base/hash/crc.h"
#include "millrace/checkpoint/format/checkpoint_keys.h"
#include "millrace/checkpoint/format/manifest.h"
#include "millrace/checkpoint/save/decide.h"
#include "millrace/object/blocking.h"
#include "millrace/object/support/listing.h"

namespace millrace::checkpoint {
namespace {

/// Lists one machine's folder of the run: for each file its name below the folder, size, time and version. A manifest's
/// version is its CRC-32C, which tells manifests of one step apart; other files have version 0.
Result<Json> Inventory(const object::Location& own, const object::Call& call) {
  std::vector<object::ObjectInfo> files;
  MR_TRY(object::ListAll(
      *own.store, {.prefix = own.key + "/"},
      [&](const object::ListPage& page) {
        files.insert(files.end(), page.objects.begin(), page.objects.end());
        return true;
      },
      call));
  Json list = Json::array();
  for (const object::ObjectInfo& file : files) {
    const std::string name = file.key.substr(own.key.size() + 1);
    std::uint32_t version = 0;
    if (CheckpointKeys("").StepOfManifest(name)) {
      auto content = object::GetAll(*own.store, file.key, Manifest::kMaxBytes, call);
      if (!content || !*content) continue;
      version = Crc32c(AsBytes((*content)->bytes));
    }
    list.push_back({name, file.size, file.modified.time_since_epoch().count(), version});
  }
  return list;
}

/// Merges the lists of all machines. Returns for each name its size, time, version, and the machines with that version.
Result<Json> Merge(const std::vector<std::string>& said) {
  Json files = Json::object();
  for (const std::string& one : said) {
    const Json listing = MR_TRY(ParseJson(one, "the files of a machine"));
    for (const Json& file : listing.at(1)) {
      Json& known = files[file.at(0).get<std::string>()];
      const bool same = !known.is_null() && known[0] == file.at(1) && known[2] == file.at(3);
      // Of two manifests of a name, the younger one wins. Other files never change, so a smaller one was cut off, and
      // the larger one wins.
      const std::size_t by = file.at(3) == 0 ? 0 : 1;
      if (!same && !known.is_null() && known[by] >= file.at(by + 1)) continue;
      if (!same) known = {file.at(1), file.at(2), file.at(3), Json::array()};
      known[3].push_back(listing.at(0));
    }
  }
  return files;
}

}  // namespace

Result<std::shared_ptr<DiskSurvey>> DiskSurvey::Take(RankExchange& group, std::shared_ptr<PeerMachines> machines,
                                                     const object::Location& own, const object::Call& call) {
  // A folder that cannot be read counts as empty.
  const Json mine = machines->is_machine_leader() ? Inventory(own, call).value_or(Json::array()) : Json::array();
  const Json agreed = MR_TRY(DecideOnRank0(group, DumpJson({machines->index(), mine}), Merge));
  std::shared_ptr<DiskSurvey> survey(new DiskSurvey(std::move(machines), own));
  for (const auto& [name, file] : agreed.items()) {
    const std::string key = own.key + "/" + name;
    survey->found_.emplace(key, FoundFile{{.key = key,
                                           .size = file[0].get<std::uint64_t>(),
                                           .modified = WallTime(WallTime::duration(file[1].get<std::int64_t>()))},
                                          file[3].get<std::vector<int>>()});
  }
  return survey;
}

bool DiskSurvey::HasLocalCopy(const std::string& key) const {
  const auto found = found_.find(key);
  return found != found_.end() && std::ranges::count(found->second.machines, machines_->index()) > 0;
}

void DiskSurvey::IgnoreCopy(int machine, const std::string& key) {
  const auto found = found_.find(key);
  if (found == found_.end()) return;
  std::erase(found->second.machines, machine);
  if (found->second.machines.empty()) found_.erase(found);
}

void DiskSurvey::Head(std::string key, object::Call, object::Done<std::optional<object::ObjectInfo>> done) {
  const auto found = found_.find(key);
  if (found == found_.end()) return done(std::nullopt);
  done(found->second.info);
}

void DiskSurvey::Get(std::string key, object::GetOptions options, MutableByteSpan into, object::Call call,
                     object::Done<std::optional<object::GetResult>> done) {
  const auto found = found_.find(key);
  if (found == found_.end()) return done(std::nullopt);
  if (HasLocalCopy(key))
    return own_.store->Get(std::move(key), std::move(options), into, std::move(call), std::move(done));
  queue_.Submit([this, &found = found->second, range = options.range, into, call = std::move(call),
                 done = std::move(done)]() mutable { done(Fetch(found, range, into, call)); });
}

void DiskSurvey::GetTo(std::string key, object::GetOptions options, std::uint64_t limit, object::Sink& sink,
                       object::Call call, object::Done<std::optional<object::GetResult>> done) {
  if (HasLocalCopy(key))
    return own_.store->GetTo(std::move(key), std::move(options), limit, sink, std::move(call), std::move(done));
  ReadStore::GetTo(std::move(key), std::move(options), limit, sink, std::move(call), std::move(done));
}

Result<std::optional<object::GetResult>> DiskSurvey::Fetch(const FoundFile& found,
                                                           const std::optional<object::ByteRange>& range,
                                                           MutableByteSpan into, const object::Call& call) const {
  const std::uint64_t size = found.info.size, from = range ? std::min(range->offset, size) : 0;
  const std::uint64_t bytes = range ? std::min(range->length, size - from) : size;
  if (bytes > into.size()) {
    return Fail(Code::kInvalidArgument, "{}: {} bytes do not fit {}; ask for fewer", found.info.key, bytes,
                into.size());
  }
  const std::string name = found.info.key.substr(own_.key.size() + 1);
  // Spreads the machines without a copy over those that have one.
  const int from_machine = found.machines[static_cast<std::size_t>(machines_->index()) % found.machines.size()];
  MR_TRY(machines_->Fetch(from_machine, name, from, into.first(bytes), call));
  return object::GetResult{bytes, found.info};
}

void DiskSurvey::List(object::ListRequest request, object::Call, object::Done<object::ListPage> done) {
  done([&]() -> Result<object::ListPage> {
    object::PageBuilder page = MR_TRY(object::PageBuilder::Start(std::move(request)));
    for (auto found = found_.lower_bound(page.start()); found != found_.end();) {
      const auto next = page.Offer(found->second.info);
      if (next == object::PageBuilder::Next::kDone) break;
      found = next == object::PageBuilder::Next::kSkip ? found_.lower_bound(page.start()) : std::next(found);
    }
    return page.TakePage();
  }());
}

}  // namespace millrace::checkpoint
