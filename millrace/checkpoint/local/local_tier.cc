#include "millrace/checkpoint/local/local_tier.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "millrace/base/json.h"
#include "millrace/checkpoint/commit/collect.h"
#include "millrace/checkpoint/commit/superseded.h"
#include "millrace/checkpoint/format/checkpoint_keys.h"
#include "millrace/checkpoint/local/disk_survey.h"
#include "millrace/checkpoint/read/catalog.h"
#include "millrace/checkpoint/read/store_reader.h"
#include "millrace/checkpoint/save/decide.h"
#include "millrace/checkpoint/save/local_folder.h"
#include "millrace/checkpoint/save/result_message.h"
#include "millrace/object/blocking.h"

namespace millrace::checkpoint {
namespace {

Json ToJson(const CheckpointId& id) { return {{"step", id.step}, {"attempt", id.attempt}}; }

Result<CheckpointId> IdFromJson(const Json& json) {
  CheckpointId id;
  id.step = MR_TRY(JsonUint(json, "step"));
  id.attempt = MR_TRY(JsonString(json, "attempt"));
  return id;
}

std::string EncodeIds(const std::set<CheckpointId>& ids) {
  Json list = Json::array();
  for (const CheckpointId& id : ids) list.push_back(ToJson(id));
  return DumpJson(list);
}
Result<std::set<CheckpointId>> DecodeIds(std::string_view text) {
  std::set<CheckpointId> ids;
  const Json list = MR_TRY(ParseJson(text, "a rank's local checkpoints"));
  for (const Json& id : list) ids.insert(MR_TRY(IdFromJson(id)));
  return ids;
}

/// Chooses the checkpoint together with the other ranks. Every rank makes the same exchanges, even after an
/// error.
class RestartChooser {
 public:
  RestartChooser(object::Connection& connection, RankExchange& group, std::string_view url,
                 const LocalTierOptions& tier, std::shared_ptr<PeerMachines> machines, const Logger& log,
                 object::Call call)
      : connection_(connection),
        group_(group),
        url_(url),
        tier_(tier),
        machines_(std::move(machines)),
        log_(log),
        call_(std::move(call)) {}

  Result<NewestCheckpoint> Open() {
    auto local = LocateLocal(tier_, url_);
    if (local) own_ = *std::move(local);
    root_ = own_;
    if (machines_) {
      survey_ = MR_TRY(DiskSurvey::Take(group_, machines_, own_, call_));
      root_.store = survey_;
    }
    FindLocal();
    const auto gathered = MR_TRY(group_.Gather(EncodeIds(Ids())));
    auto candidates = InAll(gathered);
    const std::optional<std::uint64_t> stored = MR_TRY(NewestStored(candidates));
    while (true) {
      // Rank 0 proposes the newest local checkpoint that is left. Without a proposal, the store's checkpoint is chosen.
      std::optional<CheckpointId> proposal;
      if (group_.rank() == 0 && !candidates.empty() && (!stored || candidates.rbegin()->step >= *stored))
        proposal = *candidates.rbegin();
      proposal = MR_TRY(BroadcastProposal(proposal));
      if (!proposal) break;
      const std::optional<Error> damage = MR_TRY(survey_ ? CheckOnMachines(*proposal) : Check(*proposal));
      if (!damage) {
        std::unique_ptr<Reader> chosen = std::move(found_.at(*proposal));
        MR_TRY(RemoveLater(proposal->step));
        return NewestCheckpoint{std::move(chosen), CheckpointTier::kLocal, proposal->step == stored};
      }
      if (group_.rank() == 0) {
        log_.Warning("a local checkpoint is damaged; an older one is used", {{"error", *damage}});
        candidates.erase(std::prev(candidates.end()));
      }
    }
    MR_TRY(RemoveLater(stored));
    if (!stored) return NewestCheckpoint{};
    return NewestCheckpoint{MR_TRY(Reader::Open(connection_, url_, stored, call_)), CheckpointTier::kStore};
  }

 private:
  /// Opens all local checkpoints whose files exist with the right sizes.
  void FindLocal() {
    if (!root_.store) return;
    auto entries = ListCheckpoints(root_, call_);
    if (!entries) return;  // no such folder, as before the first save
    for (const ListedCheckpoint& entry : *entries) {
      auto reader = OpenAt(root_, entry.step, call_);
      if (!reader) continue;
      const bool whole = std::ranges::all_of((*reader)->manifest().files, [&](const auto& file) {
        auto info = object::Head(*root_.store, (*reader)->folder() + file.first, call_);
        return info && *info && (*info)->size == file.second.size;
      });
      if (!whole) continue;
      const CheckpointId id = (*reader)->manifest().id();
      found_.emplace(id, *std::move(reader));
    }
  }
  std::set<CheckpointId> Ids() const {
    std::set<CheckpointId> ids;
    for (const auto& [id, reader] : found_) ids.insert(id);
    return ids;
  }
  /// Rank 0: returns the checkpoints that every rank has found.
  std::set<CheckpointId> InAll(const std::vector<std::string>& gathered) const {
    std::set<CheckpointId> common;
    for (std::size_t rank = 0; rank < gathered.size(); ++rank) {
      const auto ids = DecodeIds(gathered[rank]);
      if (!ids) return {};
      if (rank == 0) common = *ids;
      std::erase_if(common, [&](const CheckpointId& id) { return !ids->contains(id); });
    }
    return common;
  }

  /// Collective: returns the step of the store's newest checkpoint as rank 0 sees it, so that all ranks agree while
  /// others save and remove. On rank 0, drops `candidates` that an attempt saved after another one had taken its place.
  /// An error on rank 0 is an error on all ranks.
  Result<std::optional<std::uint64_t>> NewestStored(std::set<CheckpointId>& candidates) {
    std::string message;
    if (group_.rank() == 0) {
      message = EncodeResult([&]() -> Result<std::string> {
        const object::Location root = MR_TRY(object::Locate(connection_, url_));
        const auto entries = MR_TRY(ListCheckpoints(root, call_));
        if (!candidates.empty()) MR_TRY(DropSuperseded(root, candidates));
        return DumpJson(entries.empty() ? Json(nullptr) : Json(entries.back().step));
      }());
    }
    const auto text = DecodeResult(MR_TRY(group_.Broadcast(std::move(message))));
    if (!text) return Fail(Code::kUnavailable, "looking for checkpoints: {}", text.error().ToString());
    const Json step = MR_TRY(ParseJson(*text, "rank 0's newest checkpoint"));
    return step.is_number_unsigned() ? std::optional(step.get<std::uint64_t>()) : std::nullopt;
  }

  /// Rank 0: drops the local checkpoints that do not count, by the owner object of the store.
  Status DropSuperseded(const object::Location& root, std::set<CheckpointId>& candidates) const {
    const auto owner = MR_TRY(ReadOwner(*root.store, CheckpointKeys(root.key), call_));
    std::erase_if(candidates, [&](const CheckpointId& id) {
      const auto reader = found_.find(id);
      return owner && reader != found_.end() && owner->Supersedes(reader->second->manifest().epoch, id.step);
    });
    return {};
  }

  /// Collective: returns rank 0's proposal on every rank.
  Result<std::optional<CheckpointId>> BroadcastProposal(const std::optional<CheckpointId>& proposal) {
    const std::string text =
        MR_TRY(group_.Broadcast(group_.rank() == 0 ? DumpJson(proposal ? ToJson(*proposal) : Json(nullptr)) : ""));
    const Json json = MR_TRY(ParseJson(text, "rank 0's proposal"));
    if (json.is_null()) return std::nullopt;
    return MR_TRY(IdFromJson(json));
  }

  /// Collective: returns what is wrong with a proposed checkpoint; nothing if every byte is right.
  Result<std::optional<Error>> Check(const CheckpointId& proposal) const {
    const auto reader = found_.find(proposal);
    const Status mine = reader == found_.end() ? Fail(NotThere(proposal))
                                               : reader->second->VerifyShare(group_.rank(), group_.size(), call_);
    const auto verdicts = MR_TRY(group_.Gather(EncodeStatus(mine)));
    std::string first_damage = EncodeStatus({});
    for (const std::string& verdict : verdicts) {
      if (DecodeResult(verdict)) continue;
      first_damage = verdict;
      break;
    }
    const auto verdict = DecodeResult(MR_TRY(group_.Broadcast(std::move(first_damage))));
    return verdict ? std::nullopt : std::optional(verdict.error());
  }
  static std::string EncodeStatus(const Status& status) {
    return EncodeResult(status ? Result<std::string>() : Fail(status.error()));
  }
  static Error NotThere(const CheckpointId& proposal) {
    return Error(Code::kNotFound, fmt::format("step and attempt {} {} are not here", proposal.step, proposal.attempt));
  }

  /// As Check, for machines with disks of their own. The ranks of a machine check the copies on its disk. The survey
  /// then ignores damaged copies. The checkpoint is damaged only if no machine has a good copy of a file.
  Result<std::optional<Error>> CheckOnMachines(const CheckpointId& proposal) const {
    const auto reader = found_.find(proposal);
    const bool here = reader != found_.end();
    const std::string folder = here ? reader->second->folder() : "";
    const Json mine{{"machine", machines_->index()},
                    {"absent", here ? "" : NotThere(proposal).ToString()},
                    {"damaged", here ? DamagedHere(*reader->second) : Json::array()}};
    auto collect = [](const std::vector<std::string>& said) -> Result<Json> {
      std::string absent;
      Json copies = Json::array();
      for (const std::string& one : said) {
        const Json found = MR_TRY(ParseJson(one, "a rank's check of local files"));
        if (found.at("absent") != "") absent = found.at("absent").get<std::string>();
        for (const Json& file : found.at("damaged"))
          copies.push_back({{"machine", found.at("machine")}, {"file", file.at("file")}, {"error", file.at("error")}});
      }
      return Json{{"absent", absent}, {"damaged", copies}};
    };
    const Json all = MR_TRY(DecideOnRank0(group_, DumpJson(mine), collect));
    if (all.at("absent") != "") return Error(Code::kNotFound, all.at("absent").get<std::string>());
    std::optional<Error> damage;
    for (const Json& copy : all.at("damaged")) {
      const std::string key = folder + copy.at("file").get<std::string>(), why = copy.at("error").get<std::string>();
      survey_->IgnoreCopy(copy.at("machine").get<int>(), key);
      if (!MR_TRY(object::Head(*survey_, key, call_))) {
        damage = Error(Code::kCorrupt, why);
      } else if (group_.rank() == 0) {
        log_.Warning("a copy of a local checkpoint's file is damaged; another machine's is used", {{"error", why}});
      }
    }
    return damage;
  }
  /// Checks this rank's share of the files on its machine. Returns names and errors of the damaged ones.
  Json DamagedHere(const StoreReader& reader) const {
    const PeerMachines& machines = *machines_;
    Json damaged = Json::array();
    int number = 0;
    for (const auto& [file, meta] : reader.manifest().files) {
      if (!survey_->HasLocalCopy(reader.folder() + file) || number++ % machines.local_size() != machines.local_rank())
        continue;
      if (auto checked = reader.VerifyFile(file, call_); !checked)
        damaged.push_back({{"file", file}, {"error", checked.error().ToString()}});
    }
    return damaged;
  }

  /// Removes the local checkpoints after `step`, because the run saves those steps again. Rank 0 removes them or, with
  /// several machines, the first rank of each machine. Then no rank returns before all machines are done.
  Status RemoveLater(std::optional<std::uint64_t> step) {
    const bool mine = machines_ ? machines_->is_machine_leader() : group_.rank() == 0;
    if (mine && own_.store) {
      auto removed =
          checkpoint::RemoveAfter(own_, step ? static_cast<std::int64_t>(*step) : -1, /*dry_run=*/false, call_);
      if (removed && !removed->removed_steps.empty()) {
        log_.Warning("local checkpoints that are damaged, or that not all ranks see, are removed",
                     {{"checkpoints", removed->removed_steps.size()}});
      }
    }
    if (machines_) MR_TRY(group_.Gather(""));
    return {};
  }

  object::Connection& connection_;
  RankExchange& group_;
  const std::string url_;
  const LocalTierOptions& tier_;
  const std::shared_ptr<PeerMachines> machines_;
  const Logger& log_;
  const object::Call call_;
  object::Location own_;                                        ///< this rank's folder
  object::ReadLocation root_;                                   ///< where to look for checkpoints
  std::shared_ptr<DiskSurvey> survey_;                          ///< of all machines' folders; null for one machine
  std::map<CheckpointId, std::unique_ptr<StoreReader>> found_;  ///< local checkpoints that are whole
};

}  // namespace

Result<NewestCheckpoint> OpenNewest(object::Connection& connection, RankExchange& group, std::string_view url,
                                    const std::optional<LocalTierOptions>& tier, std::shared_ptr<PeerMachines> machines,
                                    const Logger& log, object::Call call) {
  return RestartChooser(connection, group, url, tier.value_or(LocalTierOptions{}), std::move(machines), log,
                        std::move(call))
      .Open();
}

}  // namespace millrace::checkpoint
