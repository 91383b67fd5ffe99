// Tests that decoding from any seek point inside a zstd frame yields the same bytes as decoding from the start.
#include "millrace/data/compression/zstd.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "millrace/data/testing/stored_object.h"

namespace millrace::data {
namespace {

using testing::FindAll;
using testing::RandomRecords;
using testing::StoredObject;

/// Returns one frame without its length in the header, as programs write it that compress a pipe.
std::string Streamed(std::string_view text, int level, int window_log, bool checksum = true,
                     std::size_t flush_every = 0) {
  ZSTD_CCtx* context = ZSTD_createCCtx();
  ZSTD_CCtx_setParameter(context, ZSTD_c_compressionLevel, level);
  ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, checksum);
  if (window_log > 0) ZSTD_CCtx_setParameter(context, ZSTD_c_windowLog, window_log);
  std::string out(ZSTD_compressBound(text.size()) + text.size() / 8 + 1000, '\0');
  ZSTD_outBuffer to{out.data(), out.size(), 0};
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t bytes = std::min(text.size() - at, flush_every > 0 ? flush_every : std::size_t{1} << 20);
    ZSTD_inBuffer from{text.data() + at, bytes, 0};
    while (from.pos < from.size) ZSTD_compressStream2(context, &to, &from, ZSTD_e_continue);
    if (flush_every > 0) ZSTD_compressStream2(context, &to, &from, ZSTD_e_flush);
    at += bytes;
  }
  ZSTD_inBuffer nothing{nullptr, 0, 0};
  EXPECT_EQ(ZSTD_compressStream2(context, &to, &nothing, ZSTD_e_end), 0U);
  ZSTD_freeCCtx(context);
  out.resize(to.pos);
  return out;
}

struct FoundSeekPoint {
  SeekPoint seek_point;
  std::size_t at = 0;  ///< in what is decoded
};

/// The decoded bytes, and the seek points on the way.
std::string Drain(Decoder& decoder, std::size_t step_bytes, std::vector<FoundSeekPoint>* places = nullptr) {
  std::string text;
  while (true) {
    const std::size_t filled = text.size();
    text.resize(filled + step_bytes);
    auto step = decoder.Decode({reinterpret_cast<std::byte*>(text.data()) + filled, step_bytes}, places != nullptr);
    EXPECT_TRUE(step.has_value()) << step.error().ToString();
    text.resize(filled + (step ? step->bytes : 0));
    if (!step || step->at_end) return text;
    if (step->at_seek_point && places) places->push_back({decoder.seek_point(), text.size()});
  }
}

/// Decodes `packed` from every seek point. Returns the number of seek points inside frames with a state of `kind`.
int EnteredEverywhere(const std::string& packed, const std::string& text, std::uint64_t spacing, char kind = 1) {
  MemoryInputStream whole(AsBytes(packed));
  auto decoder = MakeZstdDecoder(whole, {}, spacing).value();
  std::vector<FoundSeekPoint> places;
  EXPECT_TRUE(Drain(*decoder, 50'000, &places) == text);
  int inside = 0;
  for (const FoundSeekPoint& place : places) {
    inside += !place.seek_point.state.empty() && place.seek_point.state[0] == kind ? 1 : 0;
    MemoryInputStream rest(AsBytes(packed).subspan(place.seek_point.offset));
    auto entered = MakeZstdDecoder(rest, place.seek_point, spacing);
    EXPECT_TRUE(entered.has_value()) << entered.error().ToString();
    EXPECT_TRUE(entered && Drain(**entered, 33'333) == text.substr(place.at)) << "entered at " << place.at;
  }
  return inside;
}

TEST(ZstdEntries, AnyLevelAndWindowCanBeEnteredAtBlocks) {
  Random random(11);
  const std::string text = RandomRecords(random, 1 << 20, 100 << 10);
  for (int level : {-7, 1, 3, 6, 13}) {
    for (int window_log : {10, 14, 18}) {
      SCOPED_TRACE(fmt::format("level {}, window {}", level, window_log));
      EXPECT_GE(EnteredEverywhere(Streamed(text, level, window_log), text, 200'000), 2);
    }
  }
}

TEST(ZstdEntries, FramesBehindOneThatWasEnteredComeOutRight) {
  Random random(12);
  const std::string text = RandomRecords(random, 2 << 20, 3000);
  const std::string ignored("\x5a\x2a\x4d\x18\x05\x00\x00\x00hello", 13);
  std::string packed, all;
  for (bool checksum : {true, false, true}) {
    packed += Streamed(text, 3, 17, checksum) + ignored + testing::Zstd("small\n");
    all += text + "small\n";
  }
  EXPECT_GE(EnteredEverywhere(packed, all, 600'000), 6);
}

TEST(ZstdEntries, RegularDataAndBlocksOfEveryTypeCanBeEntered) {
  Random random(13);
  std::string noise(900'000, '\0');
  for (char& c : noise) c = static_cast<char>(random.Below(256));
  std::string lines;
  for (int i = 0; i < 40'000; ++i) lines += "{\"text\": \"always the same\"}\n";
  std::string counted;
  for (int i = 0; i < 100'000; ++i) counted += std::to_string(i) + "\n";
  for (int level : {1, 4, 12}) {
    SCOPED_TRACE(level);
    EXPECT_GE(EnteredEverywhere(Streamed(noise, level, 17), noise, 200'000), 2) << "blocks that are stored";
    EXPECT_GE(EnteredEverywhere(Streamed(lines, level, 17), lines, 200'000), 2) << "one sequence a block";
    EXPECT_GE(EnteredEverywhere(Streamed(counted, level, 17), counted, 100'000), 3);
    EXPECT_GE(EnteredEverywhere(Streamed(std::string(800'000, 'a'), level, 17), std::string(800'000, 'a'), 200'000), 1);
    const std::string mixed = noise + lines + counted + noise + counted + lines;
    EXPECT_GE(EnteredEverywhere(Streamed(mixed, level, 18, true, 10'000), mixed, 300'000), 8) << "small blocks";
  }
}

TEST(ZstdEntries, WindowsTooLongToKeepAreReachedFromTheFramesStart) {
  Random random(14);
  const std::string text = RandomRecords(random, 2 << 20, 3000);
  const std::string packed = testing::Zstd("first\n") + Streamed(text, 3, 24);
  EXPECT_GE(EnteredEverywhere(packed, "first\n" + text, 500'000, 2), 3);
}

TEST(ZstdEntries, OneHugeFrameIsReadInParts) {
  Random random(15);
  const std::string some = RandomRecords(random, 1 << 20, 3000);
  std::string text;
  for (int i = 0; text.size() < 136 << 20; ++i) text += fmt::format("{{\"text\":\"{}\"}}\n", i) + some;
  const std::string packed = Streamed(text, 1, 0);
  StoredObject stored(packed, {RecordLayout::kJsonLines, Compression::kZstd});
  auto all = FindAll(*stored.object.content).value();
  ASSERT_EQ(all.frames.size(), 2U);
  EXPECT_TRUE(all.contents[0] + all.contents[1] == text);
  EXPECT_LT(all.frames[1].state.size(), text.size() / 100);
  EXPECT_LT(all.frames[1].bytes, packed.size() / 8) << "the rest alone is read";
  EXPECT_TRUE(AsText(stored.object.content->ReadFrame(all.frames[1], {}).value()) == all.contents[1]);
}

/// Damaged data and damaged states, which a foreign index may hold, yield an error or other bytes.
TEST(ZstdEntries, DamageInsideOfFramesIsHarmless) {
  Random random(16);
  const std::string text = RandomRecords(random, 500'000, 3000);
  const std::string packed = Streamed(text, 3, 16, true, 20'000);
  MemoryInputStream whole(AsBytes(packed));
  std::vector<FoundSeekPoint> places;
  Drain(*MakeZstdDecoder(whole, {}, 100'000).value(), 50'000, &places);
  ASSERT_GE(places.size(), 3U);
  auto drain = [](InputStream& input, const SeekPoint& start) {
    auto decoder = MakeZstdDecoder(input, start, 50'000);
    std::vector<std::byte> into(40'000);
    while (decoder) {
      auto step = (*decoder)->Decode(into, true);
      if (!step || step->at_end) break;
      if (step->at_seek_point) (void)(*decoder)->seek_point();
    }
  };
  for (int round = 0; round < 150; ++round) {
    std::string damaged = packed;
    SeekPoint entry = round % 3 == 0 ? SeekPoint{} : places[random.Below(places.size() - 1)].seek_point;
    for (std::uint64_t flips = 1 + random.Below(4); flips > 0; --flips) {
      std::string& target = round % 3 == 1 && !entry.state.empty() ? entry.state : damaged;
      const std::size_t reach = random.Below(2) == 0 ? std::min<std::size_t>(target.size(), 400) : target.size();
      target[random.Below(reach)] ^= static_cast<char>(1U << random.Below(8));
    }
    MemoryInputStream input(AsBytes(damaged).subspan(entry.offset));
    drain(input, entry);
  }
}

TEST(ZstdEntries, DamagedStatesAreRefused) {
  const std::string packed = testing::Zstd("a line\n");
  for (std::string_view state :
       {std::string_view("\0", 1), std::string_view("\x01"), std::string_view("\x01\0\x50junk", 7),
        std::string_view("\x02\0\0\0\0\0\0\0", 8), std::string_view("\x02\xff\0\0\0\0\0\0\0", 9)}) {
    MemoryInputStream input(AsBytes(packed));
    auto decoder = MakeZstdDecoder(input, {.offset = 0, .state = std::string(state)});
    ASSERT_FALSE(decoder.has_value());
    EXPECT_EQ(decoder.error().code(), Code::kCorrupt);
  }
}

}  // namespace
}  // namespace millrace::data
