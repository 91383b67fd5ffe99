#include "millrace/vfs/staging/upload_ledger.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/vfs/testing/driver.h"

namespace millrace::vfs {
namespace {

using testing::UnorderedElementsAre;

class UploadLedgerTest : public testing::Test {
 protected:
  std::string Begin(const std::string& key) { return *object::CreateMultipart(*store, key, {}); }
  void SendPart(const std::string& key, const std::string& id) {
    EXPECT_TRUE(object::UploadPart(*store, key, id, 1, AsBytes("part")));
  }
  std::vector<std::string> UnconfirmedUpload() {
    std::vector<std::string> ids;
    const auto uploads = *object::ListUploads(*store, "");
    for (const auto& upload : uploads) ids.push_back(upload.upload_id);
    return ids;
  }
  FakeClock clock;
  std::shared_ptr<object::Store> store = Driver::MakeBucket(clock);
};

TEST_F(UploadLedgerTest, WithoutAnIdOnlyWhatWasBegunAboutThenAndHasNoPartsGoes) {
  const std::string before = Begin("f");
  clock.Advance(std::chrono::minutes(6));
  const WallTime begun = clock.Wall();
  Begin("f");  // ours
  const std::string of_another_key = Begin("f2"), with_parts = Begin("f");
  SendPart("f", with_parts);
  clock.Advance(std::chrono::minutes(9));
  Begin("f");  // ours, tried again
  clock.Advance(std::chrono::minutes(2));
  const std::string later = Begin("f");
  ASSERT_TRUE(AbortRecorded(*store, {.upload_key = "f", .upload_begun = begun}, {}));
  EXPECT_THAT(UnconfirmedUpload(), UnorderedElementsAre(before, of_another_key, with_parts, later));
}

TEST_F(UploadLedgerTest, WithAnIdThatOneGoesWhateverItHas) {
  const std::string ours = Begin("f"), other = Begin("f");
  SendPart("f", ours);
  const StagedRecord record{.upload_id = ours, .upload_key = "f", .upload_begun = clock.Wall()};
  ASSERT_TRUE(AbortRecorded(*store, record, {}));
  EXPECT_THAT(UnconfirmedUpload(), UnorderedElementsAre(other));
  EXPECT_TRUE(AbortRecorded(*store, record, {})) << "it has gone already";
}

}  // namespace
}  // namespace millrace::vfs
