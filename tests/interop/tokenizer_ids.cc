// A tokenizer for scripts: reads texts from standard input and writes their ids, both in frames.
//
//   tokenizer_ids MODEL encode|specials|decode|stream [PATTERN]
//
// A frame is a little-endian u32 count and as many bytes (text) or i32 numbers (ids); `stream` decodes one id at a
// time.
#include <cstdio>
#include <optional>

#include "millrace/base/files.h"
#include "millrace/tokenizer/tokenizer.h"

namespace millrace::tokenizer {
namespace {

template <class Items>
std::optional<Items> ReadFrame() {
  std::uint32_t count = 0;
  if (std::fread(&count, sizeof count, 1, stdin) != 1) return std::nullopt;
  Items items(count, {});
  if (count > 0 && std::fread(items.data(), sizeof items[0], count, stdin) != count) return std::nullopt;
  return items;
}

template <class Items>
void WriteFrame(const Items& items) {
  auto count = static_cast<std::uint32_t>(items.size());
  std::fwrite(&count, sizeof count, 1, stdout);
  if (count > 0) std::fwrite(items.data(), sizeof items[0], count, stdout);  // An empty vector's data() may be null.
  std::fflush(stdout);
}

Result<std::string> DecodeInParts(const Tokenizer& tokenizer, std::span<const TokenId> ids) {
  StreamDecoder decoder(tokenizer);
  std::string text;
  for (TokenId id : ids) MR_TRY(decoder.Add(id, text));
  decoder.Finish(text);
  return text;
}

Status Run(int argc, char** argv) {
  if (argc < 3)
    return Fail(Code::kInvalidArgument, "usage: tokenizer_ids MODEL encode|specials|decode|stream [PATTERN]");
  auto model = MR_TRY(ReadFile(argv[1]));
  auto tokenizer = MR_TRY(Load(AsBytes(model), argv[1], {.pattern = argc > 3 ? argv[3] : ""}));
  std::string_view mode = argv[2];
  if (mode == "encode" || mode == "specials") {
    while (auto text = ReadFrame<std::string>()) {
      std::vector<TokenId> ids;
      MR_TRY(mode == "encode" ? tokenizer->Encode(*text, ids) : tokenizer->EncodeWithSpecials(*text, ids));
      WriteFrame(ids);
    }
  } else {
    while (auto ids = ReadFrame<std::vector<TokenId>>()) {
      WriteFrame(MR_TRY(mode == "decode" ? tokenizer->Decode(*ids) : DecodeInParts(*tokenizer, *ids)));
    }
  }
  return {};
}

}  // namespace
}  // namespace millrace::tokenizer

int main(int argc, char** argv) {
  auto done = millrace::tokenizer::Run(argc, argv);
  if (!done) fmt::print(stderr, "tokenizer_ids: {}\n", done.error().ToString());
  return done ? 0 : 1;
}
