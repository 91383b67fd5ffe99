#include "millrace/data/compact/shard_builder.h"

#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "millrace/base/bytes.h"
#include "millrace/base/threads/parallel_for.h"
#include "millrace/data/formats/decoded_content.h"

namespace millrace::data {
namespace {

constexpr std::string_view kShardPrefix = "shard-";
constexpr int kZstdLevel = 3, kGzipLevel = 6;  ///< the default levels of both programs
constexpr int kGzipWindow = 15 + 16;           ///< windowBits of deflateInit2: the largest window, gzip's header
constexpr int kDeflateMemory = 8;              ///< memLevel of deflateInit2: its default

std::string_view EndingOf(Compression compression) {
  return compression == Compression::kGzip ? ".jsonl.gz" : compression == Compression::kZstd ? ".jsonl.zst" : ".jsonl";
}

Result<std::string> CompressZstd(std::string_view block) {
  std::string packed(ZSTD_compressBound(block.size()), '\0');
  const std::size_t size = ZSTD_compress(packed.data(), packed.size(), block.data(), block.size(), kZstdLevel);
  if (ZSTD_isError(size) != 0) return Fail(Code::kResourceExhausted, "zstd: {}", ZSTD_getErrorName(size));
  packed.resize(size);
  return packed;
}

Result<std::string> CompressGzip(std::string_view block) {
  z_stream zlib{};
  if (deflateInit2(&zlib, kGzipLevel, Z_DEFLATED, kGzipWindow, kDeflateMemory, Z_DEFAULT_STRATEGY) != Z_OK) {
    return Fail(Code::kResourceExhausted, "gzip: no memory");
  }
  std::string packed(deflateBound(&zlib, block.size()), '\0');
  zlib.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(block.data()));  // zlib does not write there
  zlib.avail_in = static_cast<uInt>(block.size());
  zlib.next_out = reinterpret_cast<Bytef*>(packed.data());
  zlib.avail_out = static_cast<uInt>(packed.size());
  const int status = deflate(&zlib, Z_FINISH);
  packed.resize(zlib.total_out);
  deflateEnd(&zlib);
  if (status != Z_STREAM_END) return Fail(Code::kInternal, "gzip: status {}", status);
  return packed;
}

}  // namespace

std::optional<Shard> ShardBuilder::Add(std::string_view record) {
  std::optional<Shard> full;
  if (!open_.lines.empty() && open_.lines.size() + record.size() + 1 > shard_bytes_) full = Take();
  open_.lines += record;
  open_.lines += '\n';
  ++open_.records;
  return full;
}

std::optional<Shard> ShardBuilder::Finish() {
  if (open_.lines.empty()) return std::nullopt;
  return Take();
}

Shard ShardBuilder::Take() {
  Shard full = std::move(open_);
  open_ = Shard{.number = full.number + 1, .records = 0, .lines = {}};
  return full;
}

std::string ShardName(std::uint32_t number, Compression compression) {
  return fmt::format("{}{:05}{}", kShardPrefix, number, EndingOf(compression));
}

bool IsShardName(std::string_view name) {
  if (!name.starts_with(kShardPrefix)) return false;
  name.remove_prefix(kShardPrefix.size());
  const std::size_t digits = std::min(name.find_first_not_of("0123456789"), name.size());
  const std::string_view ending = name.substr(digits);
  return digits >= 5 && (ending == ".jsonl" || ending == ".jsonl.gz" || ending == ".jsonl.zst");
}

Result<std::string> CompressLines(std::string_view lines, Compression compression, int threads, std::stop_token stop) {
  std::vector<std::string_view> blocks;
  while (!lines.empty()) {
    const std::size_t newline = lines.find('\n', std::min<std::size_t>(kFrameTarget, lines.size()));
    const std::size_t bytes = newline == std::string_view::npos ? lines.size() : newline + 1;
    blocks.push_back(lines.substr(0, bytes));
    lines.remove_prefix(bytes);
  }
  std::vector<std::string> packed(blocks.size());
  MR_TRY(ParallelFor("compact-pack", blocks.size(), threads, std::move(stop), [&] {
    return [&](std::uint64_t i, std::stop_token) -> Status {
      packed[i] = MR_TRY(compression == Compression::kGzip ? CompressGzip(blocks[i]) : CompressZstd(blocks[i]));
      return {};
    };
  }));
  std::string all;
  for (const std::string& block : packed) all += block;
  return all;
}

}  // namespace millrace::data
