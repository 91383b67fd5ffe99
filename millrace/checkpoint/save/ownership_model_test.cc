// The protocol of ownership under every order of requests within bounds: claims, commits and retention of two attempts,
// which pause at any request, and whose answers get lost. The code is the real one. Each mutation takes one condition
// away, and the checker must then find what the condition prevents.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "millrace/checkpoint/commit/superseded.h"
#include "millrace/checkpoint/read/catalog.h"
#include "millrace/checkpoint/read/step_listing.h"
#include "millrace/checkpoint/read/store_reader.h"
#include "millrace/checkpoint/save/ownership.h"
#include "millrace/checkpoint/save/saver.h"
#include "millrace/checkpoint/testing/interleaver.h"
#include "millrace/object/local/memory_store.h"

namespace millrace::checkpoint {
namespace {

using testing::ChoiceTree;
using testing::Interleaver;
using testing::SearchBounds;

constexpr std::string_view kRoot = "run";

/// The condition that is taken away.
enum class Mutation {
  kNone,
  kClaimOverOthers,     ///< the owner object is put without a condition
  kListBeforeClaim,     ///< an attempt looks for the newest checkpoint before it has claimed the place
  kCommitBeforeBegin,   ///< the owner object never says from which step an attempt went on
  kReadersCountAll,     ///< readers take every manifest
  kCommitUnconfirmed,   ///< nobody looks at the owner object after a commit
  kRemovalUnconfirmed,  ///< nobody looks at the owner object before a removal
  kCommitOverOthers,    ///< manifests are put without a condition
};

/// What each attempt does.
struct Scenario {
  int attempts = 2;
  int saves = 2;
  std::uint64_t stride[3] = {10, 10, 10};  ///< steps between the saves of each attempt
  bool collects = true;
  bool takes_over = true;  ///< as if the lease of the one before were over, whenever it is
};

/// The state of one execution. The interleaver lets one thread at a time use it.
struct World {
  struct Success {
    std::uint64_t epoch, step;
    std::string attempt;
  };
  std::shared_ptr<object::Store> store;
  std::map<std::uint64_t, CheckpointId> visible;         ///< as of the last look, by step
  std::map<std::uint64_t, std::uint64_t> visible_epoch;  ///< of the same
  std::uint64_t greatest_epoch = 0;                      ///< that was ever visible
  std::set<std::uint64_t> announced;                     ///< steps with `going` marks when the owner claimed
  std::string owner;                                     ///< its token
  int owner_actor = -1;
  std::vector<Success> successes;
  std::set<std::string> ever_visible;  ///< names of attempts
  std::string violation;               ///< the first one

  void Violate(std::string what) {
    if (violation.empty()) violation = std::move(what);
  }
};

class CheckedStore final : public testing::InterleavedStore {
 public:
  CheckedStore(std::shared_ptr<object::Store> inner, Interleaver& interleaver, Mutation mutation, World& world)
      : InterleavedStore(std::move(inner), interleaver), mutation_(mutation), world_(world) {}

 private:
  void ChangeListing(const object::ListRequest& request, object::ListPage& page) override {
    const bool before_removal = !request.start_after.empty(),
               after_commit = !before_removal && !request.delimiter.empty();
    const bool lies = (mutation_ == Mutation::kCommitUnconfirmed && after_commit) ||
                      (mutation_ == Mutation::kRemovalUnconfirmed && !after_commit);
    if (!lies || !own_etag_.contains(actor())) return;
    for (object::ObjectInfo& object : page.objects)
      if (object.key == keys_.OwnerKey()) object.etag = own_etag_[actor()];
  }
  void ChangePut(const std::string& key, std::string& content, object::PutOptions& options) override {
    const bool of_owner = key == keys_.OwnerKey();
    if ((of_owner && mutation_ == Mutation::kClaimOverOthers) ||
        (keys_.StepOfManifest(key) && mutation_ == Mutation::kCommitOverOthers)) {
      options.if_match.clear();
      options.if_none_match = false;
    }
    if (of_owner && mutation_ == Mutation::kCommitBeforeBegin) {
      OwnerRecord record = OwnerRecord::Parse(content, key).value();
      record.epochs.back().has_begun = false;
      content = record.Serialize();
    }
  }
  void AfterPut(const std::string& key, const std::string& content, const std::string& etag) override {
    if (key == keys_.OwnerKey()) {
      own_etag_[actor()] = etag;
      const std::string token = OwnerRecord::Parse(content, key)->owner().token;
      if (token != world_.owner) NoteClaim(token);
    }
    const auto step = keys_.StepOfManifest(key);
    if (step || key == keys_.OwnerKey()) Look(step && IsFence(content) ? step : std::nullopt);
  }
  void AfterDelete() override { Look(std::nullopt); }

  void NoteClaim(const std::string& token) {
    world_.owner = token;
    world_.owner_actor = actor();
    world_.announced.clear();
    const auto page = object::List(*inner_, {.prefix = keys_.StepsPrefix()});
    for (const object::ObjectInfo& object : page->objects) {
      const auto mark = keys_.ParseMark(object.key);
      if (mark && mark->kind == CheckpointKeys::MarkKind::kRemoval) world_.announced.insert(mark->step);
    }
  }

  /// Compares what a reader sees now with what it saw before. `fenced`: the step whose manifest a fence has replaced.
  void Look(std::optional<std::uint64_t> fenced) {
    const object::ReadLocation root(inner_, std::string(kRoot));
    const auto listed = mutation_ == Mutation::kReadersCountAll ? ListSteps(root)->committed : *ListCheckpoints(root);
    std::map<std::uint64_t, CheckpointId> visible;
    std::map<std::uint64_t, std::uint64_t> epochs;
    for (const ListedCheckpoint& entry : listed) {
      const auto reader = OpenAt(root, entry.step);
      if (!reader) {
        world_.Violate(fmt::format("step {} cannot be read: {}", entry.step, reader.error().ToString()));
        continue;
      }
      const Manifest& manifest = (*reader)->manifest();
      for (const auto& [name, file] : manifest.files)
        if (!*object::Head(*inner_, (*reader)->folder() + name))
          world_.Violate(fmt::format("step {} is visible without its file {}", entry.step, name));
      visible.emplace(entry.step, manifest.id());
      epochs.emplace(entry.step, manifest.epoch);
      world_.ever_visible.insert(manifest.attempt);
    }
    for (const auto& [step, id] : visible) {
      const auto before = world_.visible.find(step);
      if (before != world_.visible.end() && before->second == id) continue;
      if (epochs[step] < world_.greatest_epoch)
        world_.Violate(fmt::format("step {} of epoch {} appears after epoch {} was visible", step, epochs[step],
                                   world_.greatest_epoch));
      world_.greatest_epoch = std::max(world_.greatest_epoch, epochs[step]);
    }
    for (const auto& [step, id] : world_.visible) {
      const auto now = visible.find(step);
      if (now != visible.end() && now->second == id) continue;
      const bool by_owner = fenced == step && actor() == world_.owner_actor;
      const bool was_announced = fenced == step && world_.announced.contains(step);
      const bool was_reported = std::ranges::any_of(
          world_.successes, [&](const World::Success& success) { return success.attempt == id.attempt; });
      // A commit that nobody has reported may be superseded: its answer came after the next owner's claim.
      if (!by_owner && !was_announced && (fenced == step || was_reported))
        world_.Violate(fmt::format("step {}, which was visible, is gone by an attempt that is no owner", step));
    }
    world_.visible = std::move(visible);
    world_.visible_epoch = std::move(epochs);
  }

  const CheckpointKeys keys_{kRoot};
  const Mutation mutation_;
  World& world_;
  std::map<int, std::string> own_etag_;
};

/// Claims the place, goes on from the newest checkpoint, saves, and collects, as rank 0 of a training does.
class Attempt {
 public:
  Attempt(int number, const Scenario& scenario, Mutation mutation, std::shared_ptr<object::Store> store, World& world)
      : number_(number),
        scenario_(scenario),
        mutation_(mutation),
        root_{std::move(store), std::string(kRoot)},
        world_(world) {}

  void Run() {
    const RunLineage run{.id = fmt::format("run-{}", number_), .attempt = 1, .after = {}};
    std::optional<std::uint64_t> from;
    if (mutation_ == Mutation::kListBeforeClaim) from = Newest();
    const auto ownership =
        Ownership::Claim(root_, {.run = run, .who = {}, .takes_over = scenario_.takes_over, .log = {}});
    if (!ownership) return;
    if (mutation_ != Mutation::kListBeforeClaim) from = Newest();
    if (failed_) return;
    (*ownership)->Begin(from);
    Writer::Options options{.url = "", .retention = {.keep_last = 1}, .local = {}};
    options.chunk_bytes = 4 * kKiB;
    options.run = run;
    for (int other = 0; other < scenario_.attempts; ++other) options.run->after.push_back(fmt::format("run-{}", other));
    options.ownership = *ownership;
    if (from) options.parent = CheckpointId{*from, ""};
    Saver saver(CheckpointTier::kStore, root_, SingleRankExchange(), options);
    Snapshot snapshot(budget_);
    const std::vector<std::byte> bytes(4, static_cast<std::byte>(number_));
    const std::vector<SaveSlice> slices = {{"model/w", {.dtype = DType::kU8, .shape = {4}}, 0, bytes}};
    for (int save = 1; save <= scenario_.saves && !saver.lost(); ++save) {
      const std::uint64_t step = from.value_or(0) + scenario_.stride[number_] * static_cast<std::uint64_t>(save);
      if (!saver.Save({.step = step, .meta = "", .metrics = {}, .snapshot = snapshot.Take(slices)}, snapshot)) continue;
      NoteSuccess((*ownership)->epoch(), step);
      if (scenario_.collects) saver.Collect();
    }
  }

 private:
  std::optional<std::uint64_t> Newest() {
    const auto listed = ListCheckpoints(root_);
    failed_ = failed_ || !listed;
    return listed && !listed->empty() ? std::optional(listed->back().step) : std::nullopt;
  }
  void NoteSuccess(std::uint64_t epoch, std::uint64_t step) {
    const auto there = world_.visible.find(step);
    const bool is_own = there != world_.visible.end() && world_.visible_epoch[step] == epoch;
    // A later owner may have removed it already. Then the model there is not this one's, and was.
    if (there != world_.visible.end() && !is_own)
      world_.Violate(fmt::format("epoch {} reports step {}, whose model is another's", epoch, step));
    world_.successes.push_back({epoch, step, is_own ? there->second.attempt : ""});
  }

  const int number_;
  const Scenario& scenario_;
  const Mutation mutation_;
  const object::Location root_;
  World& world_;
  MemoryBudget budget_{1 * kMiB};
  bool failed_ = false;
};

/// Checks an execution that has ended.
void CheckEnd(World& world) {
  const auto owner = ReadOwner(*world.store, CheckpointKeys(kRoot));
  if (!owner || !*owner) return;
  for (const World::Success& success : world.successes)
    if ((*owner)->Supersedes(success.epoch, success.step))
      world.Violate(fmt::format("step {} was reported by epoch {}, and does not count", success.step, success.epoch));
}

struct Found {
  std::string violation;
  int executions = 0;
};

Found Search(const Scenario& scenario, SearchBounds bounds, Mutation mutation = Mutation::kNone) {
  ChoiceTree choices;
  Found found;
  do {
    ++found.executions;
    World world;
    world.store = object::MakeMemoryStore({.limits = {}, .inline_completions = true});
    Interleaver interleaver(choices, bounds);
    const auto store = std::make_shared<CheckedStore>(world.store, interleaver, mutation, world);
    std::vector<std::function<void()>> bodies;
    for (int i = 0; i < scenario.attempts; ++i)
      bodies.emplace_back([&, i] { Attempt(i, scenario, mutation, store, world).Run(); });
    interleaver.Run(std::move(bodies));
    CheckEnd(world);
    found.violation = world.violation;
  } while (found.violation.empty() && choices.Advance());
  return found;
}

TEST(OwnershipModel, HoldsUnderPausesAtEveryRequest) {
  const Found same = Search({}, {.switches = 2, .faults = 0});
  EXPECT_EQ(same.violation, "");
  EXPECT_GT(same.executions, 1000);
  const Found crossing = Search({.stride = {10, 15, 10}}, {.switches = 2, .faults = 0});
  EXPECT_EQ(crossing.violation, "");
}

TEST(OwnershipModel, HoldsWhenRequestsAndAnswersAreLost) {
  EXPECT_EQ(Search({}, {.switches = 1, .faults = 1}).violation, "");
  EXPECT_EQ(Search({.saves = 1, .stride = {10, 5, 10}}, {.switches = 1, .faults = 2}).violation, "");
}

TEST(OwnershipModel, HoldsForOneSaveEachInManyOrders) {
  const Found found = Search({.saves = 1, .collects = false}, {.switches = 4, .faults = 0});
  EXPECT_EQ(found.violation, "");
  EXPECT_GT(found.executions, 5000);
}

TEST(OwnershipModel, HoldsForThreeAttempts) {
  EXPECT_EQ(Search({.attempts = 3, .saves = 1, .stride = {10, 5, 10}}, {.switches = 1, .faults = 0}).violation, "");
}

class MutationTest : public ::testing::TestWithParam<std::pair<Mutation, const char*>> {};

TEST_P(MutationTest, IsFound) {
  const auto [mutation, name] = GetParam();
  Found found;
  for (const Scenario& scenario : {Scenario{}, Scenario{.stride = {10, 15, 10}}}) {
    found = Search(scenario, {.switches = 2, .faults = 0}, mutation);
    if (!found.violation.empty()) break;
  }
  EXPECT_NE(found.violation, "") << "after " << found.executions << " executions";
}

INSTANTIATE_TEST_SUITE_P(EachCondition, MutationTest,
                         ::testing::Values(std::pair(Mutation::kClaimOverOthers, "ClaimOverOthers"),
                                           std::pair(Mutation::kListBeforeClaim, "ListBeforeClaim"),
                                           std::pair(Mutation::kCommitBeforeBegin, "CommitBeforeBegin"),
                                           std::pair(Mutation::kReadersCountAll, "ReadersCountAll"),
                                           std::pair(Mutation::kCommitUnconfirmed, "CommitUnconfirmed"),
                                           std::pair(Mutation::kRemovalUnconfirmed, "RemovalUnconfirmed"),
                                           std::pair(Mutation::kCommitOverOthers, "CommitOverOthers")),
                         [](const auto& info) { return info.param.second; });

}  // namespace
}  // namespace millrace::checkpoint
