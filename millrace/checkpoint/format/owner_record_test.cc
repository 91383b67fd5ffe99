#include "millrace/checkpoint/format/owner_record.h"

#include <gtest/gtest.h>

#include "millrace/base/hash/random.h"
#include "millrace/checkpoint/format/manifest.h"

namespace millrace::checkpoint {
namespace {

OwnerEpoch Epoch(std::uint64_t number, bool has_begun, std::optional<std::uint64_t> from = std::nullopt) {
  OwnerEpoch epoch{.number = number, .token = fmt::format("{:016x}", number), .run = "a", .host = "h", .user = "u"};
  epoch.has_begun = has_begun;
  epoch.began_from = from;
  return epoch;
}

TEST(OwnerRecord, ReadsBackWhatItWrites) {
  const OwnerRecord record{.epochs = {Epoch(1, true), Epoch(3, true, 40), Epoch(4, false)},
                           .renewals = 7,
                           .has_ended = true,
                           .process = "boot:1:2:3"};
  EXPECT_EQ(OwnerRecord::Parse(record.Serialize(), "it").value(), record);
}

TEST(OwnerRecord, SupersedesWhatOlderEpochsCommitAfterLaterOnesBegan) {
  const OwnerRecord record{.epochs = {Epoch(1, true), Epoch(2, true, 40), Epoch(3, true, 30), Epoch(4, false)}};
  EXPECT_FALSE(record.Supersedes(1, 30));
  EXPECT_TRUE(record.Supersedes(1, 31));
  EXPECT_TRUE(record.Supersedes(2, 41));
  EXPECT_EQ(record.SupersededBy(1, 50).number, 2u);
  EXPECT_FALSE(record.Supersedes(3, 1000)) << "epoch 4 has not begun";
  EXPECT_FALSE(record.Supersedes(4, 1000));
  EXPECT_FALSE(record.Supersedes(0, 1000)) << "a writer without a claim";
  EXPECT_EQ(record.LeastSuperseded(), 31u);
  EXPECT_EQ((OwnerRecord{.epochs = {Epoch(1, true)}}).LeastSuperseded(), std::nullopt);
  EXPECT_TRUE((OwnerRecord{.epochs = {Epoch(1, true, 5), Epoch(2, true)}}).Supersedes(1, 0)) << "2 began anew";
}

/// A run that is started again very often keeps a short record that decides the same.
TEST(OwnerRecord, DropsEpochsThatDecideNothing) {
  OwnerRecord record;
  for (std::uint64_t number = 1; number <= 500; ++number) record.Add(Epoch(number, number % 3 != 0, 7));
  EXPECT_EQ(record.epochs.size(), OwnerRecord::kMaxEpochs);
  EXPECT_EQ(record.owner().number, 500u);
  EXPECT_TRUE(record.Supersedes(1, 8));
  EXPECT_LT(record.Serialize().size(), OwnerRecord::kMaxBytes);
  Random random(3);
  OwnerRecord all, kept;
  for (std::uint64_t number = 1; number <= 60; ++number) {
    all.epochs.push_back(Epoch(number, random.Below(4) != 0, random.Below(20)));
    kept.Add(all.epochs.back());
  }
  for (std::uint64_t epoch = 0; epoch <= 60; ++epoch)
    for (std::uint64_t step = 0; step < 25; ++step)
      EXPECT_EQ(kept.Supersedes(epoch, step), all.Supersedes(epoch, step));
}

TEST(OwnerRecord, RefusesWhatIsNone) {
  const std::string good = OwnerRecord{.epochs = {Epoch(1, true)}}.Serialize();
  ASSERT_TRUE(OwnerRecord::Parse(good, "it"));
  for (std::size_t cut = 0; cut + 2 < good.size(); cut += 7)
    EXPECT_EQ(OwnerRecord::Parse(good.substr(0, cut), "it").error().code(), Code::kCorrupt);
  std::string newer = good;
  newer.replace(newer.find("\"version\":1"), 11, "\"version\":9");
  EXPECT_EQ(OwnerRecord::Parse(newer, "it").error().code(), Code::kUnsupported);
  const OwnerRecord twice{.epochs = {Epoch(2, true), Epoch(2, true)}};
  EXPECT_EQ(OwnerRecord::Parse(twice.Serialize(), "it").error().code(), Code::kCorrupt);
}

TEST(OwnerRecord, AManifestsHeadHasItsEpoch) {
  Manifest manifest;
  manifest.step = 7;
  manifest.attempt = "5d1c0a9be2f34471";
  manifest.created = "2026-01-31T12:00:00.000Z";
  manifest.written_by.host = R"(,"epoch":99,)";
  EXPECT_EQ(EpochOfManifestHead(manifest.Serialize()), 0u);
  manifest.epoch = 12;
  const std::string text = manifest.Serialize();
  EXPECT_EQ(EpochOfManifestHead(text.substr(0, kManifestHeadBytes)), 12u);
  EXPECT_EQ(Manifest::Parse(text, "it")->epoch, 12u);
}

}  // namespace
}  // namespace millrace::checkpoint
