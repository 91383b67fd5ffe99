#include "millrace/vfs/rename/rename_lease.h"

#include <gtest/gtest.h>

#include "millrace/object/blocking.h"
#include "millrace/object/local/memory_store.h"
#include "millrace/object/testing/fault_store.h"

namespace millrace::vfs {
namespace {

using namespace std::chrono_literals;

class RenameLeaseTest : public testing::Test {
 protected:
  RenameRecord Stored() {
    auto content = *object::GetAll(*inner_, ".millrace/renames/id1", kMaxRenameRecordBytes);
    return content ? *DecodeRename(content->bytes, "test", {}) : RenameRecord();
  }
  std::unique_ptr<RenameLease> Begin() {
    auto lease = RenameLease::Prepare(*store_, clock_, {}, record_);
    EXPECT_TRUE(lease->Create({}));
    return lease;
  }
  std::unique_ptr<RenameLease> TakeOver() {
    auto content = *object::GetAll(*inner_, ".millrace/renames/id1", kMaxRenameRecordBytes);
    return *RenameLease::TakeOver(*inner_, clock_, {}, *DecodeRename(content->bytes, "test", {}), content->info.etag,
                                  "other", {});
  }
  void AwaitBeat(std::uint64_t beat) {
    while (Stored().beat < beat) std::this_thread::yield();
  }
  void Fail(object::Operation operation, int times, bool after_effect) {
    store_->Add({.operation = operation,
                 .key_prefix = ".millrace/renames/",
                 .skip = 0,
                 .times = times,
                 .fault = {.code = Code::kUnavailable, .after_effect = after_effect}});
  }

  FakeClock clock_;
  std::shared_ptr<object::Store> inner_ = object::MakeMemoryStore({.limits = {}, .md5_etags = true, .clock = &clock_});
  std::shared_ptr<object::FaultStore> store_ = object::FaultStore::Create(inner_, 1, clock_);
  RenameRecord record_{.id = "id1", .owner = "me", .from = "a/", .to = "b/", .sources = {}};
};

TEST_F(RenameLeaseTest, ARecordIsRewrittenWhileItsHolderWaits) {
  auto lease = Begin();
  for (std::uint64_t beat = 2; beat < 6; ++beat) {
    clock_.AwaitSleepers(1);
    clock_.Advance(kLeaseBeat);
    AwaitBeat(beat);
    auto info = *object::Head(*inner_, ".millrace/renames/id1");
    EXPECT_EQ(info->modified, clock_.Wall());
  }
  EXPECT_TRUE(lease->Remove({}));
  EXPECT_FALSE(*object::Head(*inner_, ".millrace/renames/id1"));
}

TEST_F(RenameLeaseTest, AHolderWhoseLeaseWasTakenMayDeleteNothing) {
  auto lease = Begin();
  const object::Call guarded = *lease->Guard({});
  EXPECT_LE(guarded.deadline, Deadline::After(clock_, kLeaseTrusted)) << "what it began ends before others may come";
  auto other = TakeOver();
  EXPECT_EQ(lease->Renew({}).error().code(), Code::kBusy);
  EXPECT_TRUE(lease->lost().stop_requested());
  EXPECT_EQ(lease->Guard({}).error().code(), Code::kBusy);
  EXPECT_EQ(lease->Write(record_, {}).error().code(), Code::kBusy);
  EXPECT_EQ(lease->Remove({}).error().code(), Code::kBusy);
  EXPECT_EQ(Stored().owner, "other");
  EXPECT_TRUE(other->Renew({}));
}

TEST_F(RenameLeaseTest, AHeartbeatFindsTheTakeover) {
  auto lease = Begin();
  auto other = TakeOver();
  std::atomic<bool> told = false;
  const std::stop_callback on_lost(lease->lost(), [&] { told = true; });
  clock_.AwaitSleepers(2);
  clock_.Advance(kLeaseBeat);
  while (!told) std::this_thread::yield();
}

TEST_F(RenameLeaseTest, AnOldLeaseIsRenewedBeforeAnythingIsDeleted) {
  auto lease = Begin();
  Fail(object::Operation::kPut, -1, false);
  clock_.Advance(kLeaseTrusted);
  EXPECT_EQ(lease->Guard({}).error().code(), Code::kUnavailable);
  store_->Clear();
  const object::Call guarded = *lease->Guard({});
  EXPECT_GT(guarded.deadline, Deadline(clock_.Now()));
}

TEST_F(RenameLeaseTest, LostAnswersAreLookedUp) {
  Fail(object::Operation::kPut, 1, true);
  auto lease = Begin();
  EXPECT_EQ(Stored().lease, lease->record()->lease);
  Fail(object::Operation::kPut, 1, true);
  RenameRecord committed = record_;
  committed.committed = true;
  EXPECT_TRUE(lease->Write(committed, {}));
  EXPECT_TRUE(Stored().committed);
  Fail(object::Operation::kPut, 1, false);
  EXPECT_TRUE(lease->Renew({})) << "tried again";
}

TEST_F(RenameLeaseTest, ARecordThatMayHaveBeenMadeIsRemoved) {
  for (bool made : {false, true}) {
    Fail(object::Operation::kPut, 1, made);
    Fail(object::Operation::kGet, -1, false);
    Fail(object::Operation::kHead, -1, false);
    auto lease = RenameLease::Prepare(*store_, clock_, {}, record_);
    EXPECT_EQ(lease->Create({}).error().code(), Code::kUnavailable);
    EXPECT_EQ(Stored().id == "id1", made);
    store_->Clear();
    EXPECT_TRUE(lease->Renew({}));
    EXPECT_TRUE(lease->Remove({}));
    EXPECT_EQ(Stored().id, "");
  }
}

TEST_F(RenameLeaseTest, ACommitWhoseOutcomeIsOpenIsTakenBack) {
  auto lease = Begin();
  Fail(object::Operation::kPut, 1, true);
  Fail(object::Operation::kGet, -1, false);
  Fail(object::Operation::kHead, -1, false);
  RenameRecord committed = record_;
  committed.committed = true;
  EXPECT_EQ(lease->Write(committed, {}).error().code(), Code::kUnavailable);
  EXPECT_TRUE(Stored().committed) << "the store has it";
  store_->Clear();
  EXPECT_FALSE(lease->record()->committed);
  EXPECT_TRUE(lease->Renew({}));
  EXPECT_FALSE(Stored().committed);
}

TEST_F(RenameLeaseTest, ARecordThatChangedIsNotTakenOver) {
  auto lease = Begin();
  auto content = *object::GetAll(*inner_, ".millrace/renames/id1", kMaxRenameRecordBytes);
  ASSERT_TRUE(lease->Renew({}));
  auto other = RenameLease::TakeOver(*inner_, clock_, {}, *DecodeRename(content->bytes, "test", {}), content->info.etag,
                                     "other", {});
  EXPECT_EQ(other.error().code(), Code::kBusy) << "each rewrite is another version, also where ETags are of the bytes";
}

}  // namespace
}  // namespace millrace::vfs
