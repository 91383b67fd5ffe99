// Helpers for tests of formats: records of all sizes, compressors, and the frames of an object.
#pragma once

#include <gtest/gtest.h>
#include <zlib.h>
#include <zstd.h>

#include <memory>
#include <string>
#include <vector>

#include "millrace/base/hash/random.h"
#include "millrace/data/formats/format.h"
#include "millrace/data/testing/testing.h"

namespace millrace::data::testing {

/// Returns a line of JSON with a text of `size` bytes, which compresses about as well as English.
inline std::string RandomRecord(Random& random, std::size_t size) {
  static constexpr std::string_view kWords = "the of river mill water stone wheel and turns grain into flour slowly ";
  std::string text;
  while (text.size() < size) {
    std::size_t at = random.Below(kWords.size() - 8);
    text += kWords.substr(at, 3 + random.Below(5));
    if (random.Below(4) == 0) text += std::to_string(random.Below(100'000));
  }
  text.resize(size);
  return fmt::format("{{\"text\":\"{}\"}}\n", text);
}

/// Returns a random size: mostly small, sometimes up to `longest`.
inline std::string RandomRecords(Random& random, std::size_t bytes, std::size_t longest) {
  std::string lines;
  while (lines.size() < bytes) {
    lines += RandomRecord(random, 1 + random.Below(random.Below(200) == 0 ? longest : 4000));
  }
  return lines;
}

inline std::string Gzip(std::string_view text, int level = 6) {
  z_stream zlib{};
  deflateInit2(&zlib, level, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&zlib, text.size()) + 32, '\0');
  zlib.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  zlib.avail_in = static_cast<uInt>(text.size());
  zlib.next_out = reinterpret_cast<Bytef*>(out.data());
  zlib.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&zlib, Z_FINISH), Z_STREAM_END);
  out.resize(zlib.total_out);
  deflateEnd(&zlib);
  return out;
}

inline std::string Zstd(std::string_view text, int level = 3, bool checksum = true) {
  ZSTD_CCtx* context = ZSTD_createCCtx();
  ZSTD_CCtx_setParameter(context, ZSTD_c_compressionLevel, level);
  ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, checksum);
  std::string out(ZSTD_compressBound(text.size()), '\0');
  std::size_t size = ZSTD_compress2(context, out.data(), out.size(), text.data(), text.size());
  EXPECT_FALSE(ZSTD_isError(size));
  out.resize(size);
  ZSTD_freeCCtx(context);
  return out;
}

/// Returns `pack` of parts of up to `longest` bytes, cut at random.
template <class Pack>
std::string InPieces(Random& random, std::string_view text, std::size_t longest, Pack pack) {
  std::string out;
  while (!text.empty()) {
    std::size_t bytes = std::min(text.size(), 1 + random.Below(longest));
    out += pack(text.substr(0, bytes));
    text.remove_prefix(bytes);
  }
  return out;
}

/// An object in memory and its content.
struct StoredObject {
  std::shared_ptr<object::Store> store = object::MakeMemoryStore();
  DataObject object;

  StoredObject(std::string_view bytes, DataFormat format, std::string url = "s3://corpus/o") {
    PutText(*store, "o", bytes);
    object = {store, *object::Head(*store, "o").value(), std::move(url)};
    object.content = ContentFor(object, format).value();
  }
};

struct FoundFrames {
  std::vector<Frame> frames;
  std::vector<std::string> contents;  ///< as found
};

inline Result<FoundFrames> FindAll(const Content& content) {
  FoundFrames all;
  MR_TRY(content.FindFrames(
      [&](Frame frame, std::optional<Buffer> bytes) -> Status {
        all.frames.push_back(std::move(frame));
        all.contents.emplace_back(AsText(bytes.value()));
        return {};
      },
      {}));
  return all;
}

/// Finds the frames, reads each again from the last to the first, and returns the joined content.
inline std::string ReadBack(const Content& content) {
  auto all = FindAll(content);
  EXPECT_TRUE(all.has_value()) << all.error().ToString();
  if (!all) return "";
  std::string text;
  for (const std::string& one : all->contents) text += one;
  for (std::size_t i = all->frames.size(); i-- > 0;) {
    auto again = content.ReadFrame(all->frames[i], {});
    EXPECT_TRUE(again.has_value()) << "frame " << i << ": " << again.error().ToString();
    EXPECT_TRUE(again && AsText(*again) == all->contents[i]) << "frame " << i;
    EXPECT_TRUE(all->contents[i].ends_with('\n'));
  }
  return text;
}

}  // namespace millrace::data::testing
