// Claims on the place of a run's checkpoints: who may save there, who is refused, and what that costs.
#include "millrace/checkpoint/save/ownership.h"

#include <gmock/gmock.h>

#include <thread>

#include "millrace/base/process/process_name.h"
#include "millrace/checkpoint/commit/collect.h"
#include "millrace/checkpoint/commit/superseded.h"
#include "millrace/checkpoint/testing/checkpoint_test_base.h"

namespace millrace::checkpoint {
namespace {

using object::Operation;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::kUrl;
using testing::State;

class OwnershipTest : public testing::CheckpointTest {
 protected:
  object::Location Root() const { return {store_, "runs/a"}; }
  CheckpointKeys Names() const { return CheckpointKeys("runs/a"); }
  Ownership::Options By(const std::string& run, int attempt = 1) {
    return {.run = {.id = run, .attempt = attempt, .after = {}},
            .who = {.host = "host-" + run, .user = "ann", .program = "millrace-train", .version = "", .libraries = {}},
            .clock = &clock_,
            .log = {}};
  }
  std::shared_ptr<Ownership> MustClaim(Ownership::Options options) {
    auto claimed = Ownership::Claim(Root(), std::move(options));
    EXPECT_TRUE(claimed) << (claimed ? "" : claimed.error().ToString());
    return claimed ? *claimed : nullptr;
  }
  OwnerRecord Record() { return ReadOwner(*store_, Names())->value(); }
  /// Writes the record as another program on another machine would.
  void Write(const OwnerRecord& record) {
    ASSERT_TRUE(object::Put(*store_, Names().OwnerKey(), AsBytes(record.Serialize())));
  }
  /// Makes the owner one of another machine, whose process cannot be looked up.
  void MoveOwnerAway() {
    OwnerRecord record = Record();
    record.process = "another-boot:1:2:3";
    Write(record);
  }
  std::unique_ptr<Writer> OpenWriter(const std::shared_ptr<Ownership>& ownership, const std::string& run,
                                     std::optional<std::uint64_t> from, int attempt = 1) {
    ownership->Begin(from);
    Writer::Options options = Options();
    options.retention = {.keep_last = 1};
    options.run = RunLineage{.id = run, .attempt = attempt, .after = {"a", "b"}};
    options.ownership = ownership;
    if (from) options.parent = CheckpointId{*from, ""};
    return Open(SingleRankExchange(), std::move(options));
  }
  const State state_ = State::Random(1, 2);
};

TEST_F(OwnershipTest, EachAttemptTakesTheNextEpoch) {
  const auto first = MustClaim(By("a"));
  EXPECT_EQ(first->epoch(), 1u);
  first->Begin(std::nullopt);
  const auto second = MustClaim(By("a", 2));  // the same run: at once
  EXPECT_EQ(second->epoch(), 2u);
  second->Begin(40);
  ASSERT_TRUE(second->EnsureBegun());
  const OwnerRecord record = Record();
  ASSERT_EQ(record.epochs.size(), 2u);
  EXPECT_EQ(record.epochs[0].host, "host-a");
  EXPECT_EQ(record.owner().attempt, 2);
  EXPECT_EQ(record.owner().began_from, 40);
  EXPECT_EQ(record.process, ProcessName());
  EXPECT_FALSE(first->lost());
  ASSERT_FALSE(first->Renew());
  EXPECT_THAT(first->lost()->ToString(),
              AllOf(HasSubstr("ann@host-a (millrace-train, since 20"), HasSubstr("has taken over memory"),
                    HasSubstr("epoch 2 after 1"), HasSubstr("saves nothing more")));
  EXPECT_FALSE(first->EnsureBegun());
  const auto late = Ownership::Claim(Root(), By("a"));
  ASSERT_FALSE(late);
  EXPECT_THAT(late.error().ToString(), HasSubstr("a later attempt of this run"));
}

TEST_F(OwnershipTest, AnOwnerThatRenewsIsLeftInPeace) {
  const auto owner = MustClaim(By("a"));
  MoveOwnerAway();
  std::jthread claimer([&] {
    const auto refused = Ownership::Claim(Root(), By("b"));
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), Code::kBusy);
    EXPECT_THAT(refused.error().ToString(),
                AllOf(HasSubstr("has an owner: ann@host-a (millrace-train, since 20"), HasSubstr("--take-over")));
  });
  clock_.AwaitSleepers(1);
  OwnerRecord renewed = Record();
  ++renewed.renewals;
  Write(renewed);
  clock_.Advance(std::chrono::seconds(1));
}

TEST_F(OwnershipTest, AnOwnerThatIsSilentForItsLeaseIsTakenOver) {
  MustClaim(By("a"));
  MoveOwnerAway();
  clock_.AdvanceOnSleep(true);
  const TimePoint before = clock_.Now();
  EXPECT_EQ(MustClaim(By("b"))->epoch(), 2u);
  EXPECT_GE(clock_.Now() - before, kOwnerLease);
  EXPECT_LE(clock_.Now() - before, kOwnerLease + std::chrono::seconds(2));
}

TEST_F(OwnershipTest, WhoIsStoppedWhileItWaitsJudgesByWhatItSeesAfterwards) {
  MustClaim(By("a"));
  MoveOwnerAway();
  std::jthread claimer([&] { EXPECT_FALSE(Ownership::Claim(Root(), By("b"))); });
  clock_.AwaitSleepers(1);
  OwnerRecord renewed = Record();
  ++renewed.renewals;
  Write(renewed);
  clock_.Advance(10 * kOwnerLease);  // the claimer was stopped for so long; the owner has renewed meanwhile
}

TEST_F(OwnershipTest, WhoeverNeedNotWaitDoesNot) {
  MustClaim(By("a"))->Release();
  EXPECT_TRUE(Record().has_ended);
  const auto second = MustClaim(By("b"));
  EXPECT_EQ(second->epoch(), 2u);
  Ownership::Options forced = By("c");
  forced.takes_over = true;
  EXPECT_EQ(MustClaim(forced)->epoch(), 3u);
  EXPECT_FALSE(second->Renew());
  OwnerRecord record = Record();
  std::string gone = ProcessName();
  record.process = gone.substr(0, gone.rfind(':')) + ":1";  // this process id, started at another time
  Write(record);
  EXPECT_EQ(MustClaim(By("d"))->epoch(), 4u);
}

TEST_F(OwnershipTest, TheOwnerIsEndedFromOutside) {
  EXPECT_FALSE(*Ownership::EndOwner(Root(), {}, clock_));
  EXPECT_THAT(Keys("runs/a"), IsEmpty()) << "where nobody saves, nothing is written";
  const auto owner = MustClaim(By("a"));
  const auto ended = Ownership::EndOwner(Root(), {}, clock_);
  ASSERT_TRUE(ended && *ended);
  EXPECT_EQ((*ended)->host, "host-a");
  EXPECT_FALSE(owner->Renew());
  EXPECT_EQ(MustClaim(By("b"))->epoch(), 3u);
}

TEST_F(OwnershipTest, LostAnswersAreFoundOut) {
  const auto lose = [&](bool after) {
    store_->Add({.operation = Operation::kPut,
                 .key_prefix = Names().OwnerKey(),
                 .fault = {.code = Code::kDeadlineExceeded, .after_effect = after}});
  };
  lose(true);
  const auto owner = MustClaim(By("a"));
  EXPECT_EQ(owner->epoch(), 1u);
  lose(true);
  EXPECT_TRUE(owner->Renew());
  lose(false);
  EXPECT_FALSE(owner->Renew()) << "nothing was written";
  EXPECT_FALSE(owner->lost());
  EXPECT_TRUE(owner->Renew());
  ASSERT_TRUE(object::Delete(*store_, Names().OwnerKey()));
  EXPECT_TRUE(owner->Renew()) << "put again after somebody has removed it";
}

TEST_F(OwnershipTest, ARenewalInTheBackgroundFindsWhoTookOver) {
  const auto owner = MustClaim(By("a"));
  owner->StartRenewing();
  clock_.AwaitSleepers(1);
  clock_.Advance(kRenewalInterval);
  clock_.AwaitSleepers(1);
  while (Record().renewals == 0) std::this_thread::yield();
  Ownership::Options forced = By("b");
  forced.takes_over = true;
  MustClaim(forced);
  clock_.AwaitSleepers(1);
  clock_.Advance(kRenewalInterval);
  while (!owner->lost()) std::this_thread::yield();
}

TEST_F(OwnershipTest, ALateCommitDoesNotCount) {
  auto first = MustClaim(By("a"));
  auto behind = OpenWriter(first, "a", std::nullopt);
  ASSERT_TRUE(Save(*behind, 10, state_));
  Ownership::Options forced = By("b");
  forced.takes_over = true;
  const auto second = MustClaim(forced);
  second->Begin(10);
  ASSERT_TRUE(second->EnsureBegun());
  const auto late = Save(*behind, 20, state_);
  ASSERT_FALSE(late);
  EXPECT_THAT(late.error().ToString(), HasSubstr("has taken over"));
  EXPECT_TRUE(behind->lost());
  EXPECT_THAT(Steps(), ElementsAre(10)) << "step 20 is there, but is not listed";
  EXPECT_EQ(Reader::Open(connection_, kUrl)->get()->manifest().step, 10u);
  const auto opened = Reader::Open(connection_, kUrl, 20);
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code(), Code::kNotFound);
  EXPECT_THAT(opened.error().ToString(), HasSubstr("ann@host-b"));
  // A collector that belongs to nobody must not take it for the newest.
  ASSERT_TRUE(CollectGarbage(Root(), {.keep_last = 1}, true));
  EXPECT_THAT(CollectGarbage(Root(), {.keep_last = 1}, true)->removed_steps, ElementsAre(20));
  const auto keys = Keys();
  EXPECT_FALSE(Save(*behind, 30, state_));
  EXPECT_EQ(Keys(), keys) << "nothing is written";
  auto ahead = OpenWriter(second, "b", 10);
  ASSERT_TRUE(Save(*ahead, 20, state_)) << "in place of what does not count";
  ExpectGood(20, state_);
  EXPECT_THAT(Steps(), ElementsAre(20));
}

TEST_F(OwnershipTest, TheOwnerRemovesWhatDoesNotCount) {
  auto behind = OpenWriter(MustClaim(By("a")), "a", std::nullopt);
  ASSERT_TRUE(Save(*behind, 10, state_));
  Ownership::Options forced = By("b");
  forced.takes_over = true;
  auto ahead = OpenWriter(MustClaim(forced), "b", 10);
  ASSERT_TRUE(Save(*ahead, 15, state_));
  ASSERT_FALSE(Save(*behind, 20, state_));
  ASSERT_TRUE(Save(*ahead, 30, state_));
  EXPECT_THAT(Steps(), ElementsAre(30));
  for (const std::string& key : Keys()) EXPECT_EQ(key.find("step-00000020/"), std::string::npos) << key;
}

TEST_F(OwnershipTest, OldCheckpointsGoOnAndGetAnOwner) {
  ASSERT_TRUE(Save(*Open(), 10, state_));  // a writer without a claim names no epoch
  EXPECT_EQ(MustOpen()->manifest().epoch, 0u);
  const auto owner = MustClaim(By("a"));
  EXPECT_EQ(owner->epoch(), 1u);
  auto writer = OpenWriter(owner, "a", 10);
  ASSERT_TRUE(Save(*writer, 20, state_));
  EXPECT_EQ(MustOpen()->manifest().epoch, 1u);
  ASSERT_TRUE(object::Delete(*store_, Names().OwnerKey()));
  EXPECT_EQ(MustClaim(By("b"))->epoch(), 2u) << "epochs go on from the manifests, where the object is lost";
}

TEST_F(OwnershipTest, ADamagedOwnerObjectIsNamed) {
  ASSERT_TRUE(object::Put(*store_, Names().OwnerKey(), AsBytes(std::string_view("{}"))));
  const auto claimed = Ownership::Claim(Root(), By("a"));
  ASSERT_FALSE(claimed);
  EXPECT_EQ(claimed.error().code(), Code::kCorrupt);
  EXPECT_THAT(claimed.error().ToString(), HasSubstr("step-owner.json"));
}

TEST_F(OwnershipTest, AStoreWithoutConditionsIsRefused) {
  store_ = object::FaultStore::Create(object::MakeMemoryStore());  // the test of the store has a deadline of this clock
  store_->SetIdentity("https://ignores-conditions/owned");
  store_->Add({.operation = Operation::kPut, .times = -1, .fault = {.ignore_conditions = true}});
  const auto claimed = Ownership::Claim(Root(), By("a"));
  ASSERT_FALSE(claimed);
  EXPECT_EQ(claimed.error().code(), Code::kUnsupported);
  EXPECT_THAT(Keys(), IsEmpty());
}

/// Requests of a save with a claim, beside those of a save without one.
TEST_F(OwnershipTest, ACommitCostsNoRequestMore) {
  const std::vector<Operation> kinds = {Operation::kHead,       Operation::kGet,    Operation::kList,
                                        Operation::kPut,        Operation::kDelete, Operation::kDeleteMany,
                                        Operation::kListUploads};
  const auto count = [&] {
    std::map<Operation, std::uint64_t> calls;
    for (const Operation kind : kinds) calls[kind] = store_->calls(kind);
    return calls;
  };
  const auto cost_of = [&](Writer& writer, std::uint64_t first) {
    for (std::uint64_t step = first; step < first + 3; ++step) EXPECT_TRUE(Save(writer, step, state_));
    const auto before = count();
    for (std::uint64_t step = first + 3; step < first + 8; ++step) EXPECT_TRUE(Save(writer, step, state_));
    auto after = count();
    for (auto& [kind, calls] : after) calls -= before.at(kind);
    return after;
  };
  Writer::Options plain = Options();
  plain.retention = {.keep_last = 1};
  plain.run = RunLineage{.id = "a", .attempt = 1, .after = {}};
  const auto without = cost_of(*Open(SingleRankExchange(), plain), 10);
  const auto before = count();
  const auto owner = MustClaim(By("a", 2));
  EXPECT_EQ(count().at(Operation::kPut) - before.at(Operation::kPut), 1u) << "a claim is one conditional put";
  auto writer = OpenWriter(owner, "a", 17, 2);
  EXPECT_EQ(cost_of(*writer, 20), without);
}

}  // namespace
}  // namespace millrace::checkpoint
