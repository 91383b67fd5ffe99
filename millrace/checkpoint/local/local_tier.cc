#include "millrace/checkpoint/local/local_tier.h"

#include <algorithm>
#include <set>

#include "millrace/checkpoint/exchange/agree.h"
#include "millrace/checkpoint/format/layout.h"
#include "millrace/checkpoint/local/disk_survey.h"
#include "millrace/checkpoint/read/catalog.h"
#include "millrace/checkpoint/read/store_reader.h"
#include "millrace/checkpoint/retention/collect.h"
#include "millrace/checkpoint/tier/local_folder.h"
#include "millrace/object/blocking.h"

namespace millrace::checkpoint {
namespace {

std::string EncodeIds(const std::set<std::pair<std::uint64_t, std::string>>& ids) {
  Json list = Json::array();
  for (const auto& [step, attempt] : ids) list.push_back({step, attempt});
  return DumpJson(list);
}

Result<std::set<std::pair<std::uint64_t, std::string>>> DecodeIds(std::string_view text) {
  std::set<std::pair<std::uint64_t, std::string>> ids;
  const Json list = MR_TRY(ParseJson(text, "a rank's local checkpoints"));
  for (const Json& id : list) {
    if (!id.is_array() || id.size() != 2 || !id[0].is_number_unsigned() || !id[1].is_string())
      return Fail(Code::kInternal, "a rank's local checkpoints are no list of steps");
    ids.emplace(id[0].get<std::uint64_t>(), id[1].get<std::string>());
  }
  return ids;
}

/// One rank's part in the choice. All ranks go through the same exchanges, whatever they find.
class Chooser {
 public:
  Chooser(object::Connection& connection, Group& group, std::string_view url, const LocalTier& tier,
          std::shared_ptr<Machines> machines, const Logger& log, object::Call call)
      : connection_(connection),
        group_(group),
        url_(url),
        tier_(tier),
        machines_(std::move(machines)),
        log_(log),
        call_(std::move(call)) {}

  Result<Newest> Open() {
    auto local = LocateLocal(tier_, url_);
    if (local) own_ = *std::move(local);
    root_ = own_;
    if (machines_) {
      survey_ = MR_TRY(DiskSurvey::Take(group_, machines_, own_, call_));
      root_.store = survey_;
    }
    FindLocal();
    auto gathered = MR_TRY(group_.Gather(EncodeIds(Ids())));
    auto candidates = InAll(gathered);
    std::int64_t stored = MR_TRY(NewestStored());
    while (true) {
      // Rank 0 proposes a local one: "step attempt"; nothing: the store's.
      std::string proposal;
      if (group_.rank() == 0 && !candidates.empty() && std::cmp_greater_equal(candidates.rbegin()->first, stored))
        proposal = fmt::format("{} {}", candidates.rbegin()->first, candidates.rbegin()->second);
      proposal = MR_TRY(group_.Broadcast(std::move(proposal)));
      if (proposal.empty()) break;
      const std::string verdict = MR_TRY(survey_ ? CheckOnMachines(proposal) : Check(proposal));
      if (verdict.empty()) {
        std::unique_ptr<Reader> chosen = std::move(found_.at(proposal));
        MR_TRY(RemoveLater(static_cast<std::int64_t>(chosen->manifest().step)));
        const bool in_store = std::cmp_equal(chosen->manifest().step, stored);
        return Newest{std::move(chosen), Tier::kLocal, in_store};
      }
      if (group_.rank() == 0) {
        log_.Warning("a local checkpoint is damaged; an older one is used", {{"error", verdict}});
        candidates.erase(std::prev(candidates.end()));
      }
    }
    MR_TRY(RemoveLater(stored));
    if (stored < 0) return Newest{};
    return Newest{MR_TRY(Reader::Open(connection_, url_, static_cast<std::uint64_t>(stored), call_)), Tier::kStore};
  }

 private:
  using Id = std::pair<std::uint64_t, std::string>;

  /// Readers of all local checkpoints whose files are there.
  void FindLocal() {
    if (!root_.store) return;
    auto entries = ListCheckpoints(root_, call_);
    if (!entries) return;  // no such folder, as before the first save
    for (const Entry& entry : *entries) {
      auto reader = OpenAt(root_, entry.step, call_);
      if (!reader) continue;
      const bool whole = std::ranges::all_of((*reader)->manifest().files, [&](const auto& file) {
        auto info = object::Head(*root_.store, (*reader)->folder() + file.first, call_);
        return info && *info && (*info)->size == file.second.size;
      });
      if (!whole) continue;
      const CheckpointId id = (*reader)->manifest().id();
      found_.emplace(fmt::format("{} {}", id.step, id.attempt), *std::move(reader));
    }
  }
  std::set<Id> Ids() const {
    std::set<Id> ids;
    for (const auto& [name, reader] : found_) ids.emplace(reader->manifest().step, reader->manifest().attempt);
    return ids;
  }
  /// Rank 0: what every rank has found.
  std::set<Id> InAll(const std::vector<std::string>& gathered) const {
    std::set<Id> common;
    for (std::size_t rank = 0; rank < gathered.size(); ++rank) {
      const auto ids = DecodeIds(gathered[rank]);
      if (!ids) return {};
      if (rank == 0) common = *ids;
      std::erase_if(common, [&](const Id& id) { return !ids->contains(id); });
    }
    return common;
  }

  /// The same on every rank, even while others come and go; -1: none. An error on rank 0 is one on all.
  Result<std::int64_t> NewestStored() {
    std::string said;
    if (group_.rank() == 0) {
      auto entries = [&]() -> Result<std::vector<Entry>> {
        return ListCheckpoints(MR_TRY(object::Locate(connection_, url_)), call_);
      }();
      said = !entries           ? "!" + entries.error().ToString()
             : entries->empty() ? "-1"
                                : fmt::format("{}", entries->back().step);
    }
    said = MR_TRY(group_.Broadcast(std::move(said)));
    if (said.starts_with('!')) return Fail(Code::kUnavailable, "looking for checkpoints: {}", said.substr(1));
    return std::strtoll(said.c_str(), nullptr, 10);
  }

  /// Collective: what is wrong with a proposed checkpoint, nothing if every byte is right.
  Result<std::string> Check(const std::string& proposal) const {
    const auto reader = found_.find(proposal);
    const Status mine = reader == found_.end() ? Fail(NotThere(proposal))
                                               : reader->second->VerifyShare(group_.rank(), group_.size(), call_);
    auto verdicts = MR_TRY(group_.Gather(mine ? "" : mine.error().ToString()));
    auto bad = std::ranges::find_if(verdicts, [](const std::string& verdict) { return !verdict.empty(); });
    return group_.Broadcast(bad == verdicts.end() ? "" : *bad);
  }
  static Error NotThere(const std::string& proposal) {
    return Error(Code::kNotFound, fmt::format("step and attempt {} are not here", proposal));
  }

  /// Likewise, where a copy that is damaged is of no consequence while another machine has a good one: every machine's
  /// ranks check what lies there.
  Result<std::string> CheckOnMachines(const std::string& proposal) const {
    const auto reader = found_.find(proposal);
    const bool here = reader != found_.end();
    const std::string absent = here ? "" : NotThere(proposal).ToString(), folder = here ? reader->second->folder() : "";
    Json damaged = here ? DamagedHere(*reader->second) : Json::array();
    auto collect = [](const std::vector<std::string>& said) -> Result<Json> {
      std::string absent;
      Json copies = Json::array();
      for (const std::string& one : said) {
        const Json told = MR_TRY(ParseJson(one, "what a rank found"));
        if (told.at(1) != "") absent = told.at(1).get<std::string>();
        for (const Json& file : told.at(2)) copies.push_back({told.at(0), file.at(0), file.at(1)});
      }
      return Json{{"absent", absent}, {"damaged", copies}};
    };
    const Json all = MR_TRY(Agree(group_, DumpJson({machines_->mine(), absent, damaged}), collect));
    std::string verdict = all.at("absent").get<std::string>();
    if (!verdict.empty()) return verdict;
    for (const Json& copy : all.at("damaged")) {
      const std::string key = folder + copy.at(1).get<std::string>(), why = copy.at(2).get<std::string>();
      survey_->Distrust(copy.at(0).get<int>(), key);
      if (!MR_TRY(object::Head(*survey_, key, call_))) {
        verdict = why;
      } else if (group_.rank() == 0) {
        log_.Warning("a copy of a local checkpoint's file is damaged; another machine's is used", {{"error", why}});
      }
    }
    return verdict;
  }
  /// Of the files that this machine has, those of this rank's share that are not right: names and why.
  Json DamagedHere(const StoreReader& reader) const {
    const Machines& machines = *machines_;
    Json damaged = Json::array();
    int number = 0;
    for (const auto& [file, meta] : reader.manifest().files) {
      if (!survey_->Here(reader.folder() + file) || number++ % machines.ranks_here() != machines.place()) continue;
      if (auto checked = reader.VerifyFile(file, call_); !checked)
        damaged.push_back({file, checked.error().ToString()});
    }
    return damaged;
  }

  /// Local ones that nobody can go on from stand in the way of the same steps' next saves. Rank 0 removes them, or the
  /// first rank of each machine; on several machines no save begins before all of them have.
  Status RemoveLater(std::int64_t step) {
    const bool mine = machines_ ? machines_->leads() : group_.rank() == 0;
    if (mine && own_.store) {
      auto removed = checkpoint::RemoveAfter(own_, step, /*dry_run=*/false, call_);
      if (removed && !removed->removed_steps.empty()) {
        log_.Warning("local checkpoints that are damaged, or that not all ranks see, are removed",
                     {{"checkpoints", removed->removed_steps.size()}});
      }
    }
    if (machines_) MR_TRY(group_.Gather(""));
    return {};
  }

  object::Connection& connection_;
  Group& group_;
  const std::string url_;
  const LocalTier& tier_;
  const std::shared_ptr<Machines> machines_;
  const Logger& log_;
  const object::Call call_;
  object::Location own_;                                       ///< this rank's folder
  object::ReadLocation root_;                                  ///< where to look for checkpoints
  std::shared_ptr<DiskSurvey> survey_;                         ///< of all machines' folders, where there are several
  std::map<std::string, std::unique_ptr<StoreReader>> found_;  ///< by "step attempt"
};

}  // namespace

Result<Newest> OpenNewest(object::Connection& connection, Group& group, std::string_view url,
                          const std::optional<LocalTier>& tier, std::shared_ptr<Machines> machines, const Logger& log,
                          object::Call call) {
  return Chooser(connection, group, url, tier.value_or(LocalTier{}), std::move(machines), log, std::move(call)).Open();
}

}  // namespace millrace::checkpoint
