// A tokenizer for scripts. Reads texts from standard input and writes their ids, both in frames.
//
//   tokenizer_ids MODEL encode|specials|decode|stream [PATTERN]
//   tokenizer_ids - session
//
// A frame is a little-endian u32 count, and then that many bytes (text) or i32 numbers (ids). `stream` decodes one id
// at a time. In a session every frame is bytes. Its first byte is the command: load a model file (l), encode (e),
// encode with special tokens (s), decode (d) or decode one by one (t). An answer begins with +, or with - and an
// error's text.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <span>

#include "millrace/base/files/files.h"
#include "millrace/tokenizer/formats/load.h"
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

std::vector<TokenId> ToIds(std::string_view bytes) {
  std::vector<TokenId> ids(bytes.size() / sizeof(TokenId));
  if (!ids.empty()) std::memcpy(ids.data(), bytes.data(), ids.size() * sizeof(TokenId));
  return ids;
}

/// Answers one frame of a session.
Result<std::string> Answer(std::string_view frame, std::shared_ptr<const Tokenizer>& tokenizer) {
  const char what = frame.empty() ? '\0' : frame[0];
  const std::string rest(frame.substr(std::min<std::size_t>(1, frame.size())));
  if (what == 'l') {
    tokenizer = nullptr;
    const std::string model = MR_TRY(ReadFile(rest));
    tokenizer = MR_TRY(Load(AsBytes(model), rest));
    return std::string(tokenizer->kind());
  }
  if (!tokenizer) return Fail(Code::kInvalidArgument, "no model is loaded");
  if (what == 'd') return tokenizer->Decode(ToIds(rest));
  if (what == 't') return DecodeInParts(*tokenizer, ToIds(rest));
  std::vector<TokenId> ids;
  MR_TRY(what == 's' ? tokenizer->EncodeWithSpecials(rest, ids) : tokenizer->Encode(rest, ids));
  return std::string(AsText(std::as_bytes(std::span(ids))));
}

void RunSession() {
  std::shared_ptr<const Tokenizer> tokenizer;
  while (auto frame = ReadFrame<std::string>()) {
    auto answer = Answer(*frame, tokenizer);
    WriteFrame(answer ? "+" + *answer : "-" + answer.error().ToString());
  }
}

Status Run(int argc, char** argv) {
  if (argc == 3 && std::string_view(argv[2]) == "session") {
    RunSession();
    return {};
  }
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
