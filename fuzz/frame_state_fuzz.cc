// Decodes real gzip and zstd data with any frame state, as an index of a stranger may have it: an error, or decoded
// within its bounds. Bytes 0 to 5 are compression, offset and skip; the state follows. Its length and checksum are made
// plausible, so that the fuzzer reaches the code behind their checks.
#include <zlib.h>
#include <zstd.h>

#include <cstdlib>
#include <string>

#include "millrace/base/bytes.h"
#include "millrace/data/formats/decoded_content.h"
#include "millrace/object/blocking.h"
#include "millrace/object/local/memory_store.h"

namespace {

using namespace millrace;

std::string Text() {
  std::string text;
  for (int i = 0; i < 400; ++i) text += "{\"text\":\"" + std::to_string(i * i) + "\"}\n";
  return text;
}

std::string Gzip(std::string text) {
  z_stream zlib{};
  deflateInit2(&zlib, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
  std::string out(text.size() + 100, '\0');
  zlib.next_in = reinterpret_cast<Bytef*>(text.data());
  zlib.avail_in = static_cast<uInt>(text.size());
  zlib.next_out = reinterpret_cast<Bytef*>(out.data());
  zlib.avail_out = static_cast<uInt>(out.size());
  deflate(&zlib, Z_FINISH);
  out.resize(zlib.total_out);
  deflateEnd(&zlib);
  return out;
}

std::string Zstd(const std::string& text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3));
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace millrace::data;
  static const std::string kObjects[] = {Text(), Gzip(Text()), Zstd(Text())};
  if (size < 10) return 0;
  DataFormat format{.compression = static_cast<Compression>(data[0] % 3)};
  const std::string& bytes = kObjects[data[0] % 3];
  auto store = object::MakeMemoryStore();
  object::Put(*store, "o", AsBytes(bytes)).value();
  auto content = MakeDecodedContent({.store = store, .info = *object::Head(*store, "o").value(), .url = "o"}, format);
  const std::byte* at = reinterpret_cast<const std::byte*>(data);
  Frame frame{.offset = LoadLittle<std::uint16_t>(at + 1) % bytes.size(), .skip = LoadLittle<std::uint16_t>(at + 3)};
  frame.bytes = bytes.size() - frame.offset;
  frame.state.assign(reinterpret_cast<const char*>(data) + 5, size - 5);
  if (frame.state.size() >= 4) frame.state[2] = frame.state[3] = 0;  // at most 64 KiB
  (void)content->ReadFrame(frame, {});
  return 0;
}
