// Encoders. A small SentencePiece model, made of the input's first bytes, gives the same ids as the library. The ids of
// byte-level BPE decode to the text.
#include <sentencepiece_processor.h>

#include <algorithm>
#include <cstdlib>

#include "millrace/base/hash/text_encoding.h"
#include "millrace/tokenizer/formats/load.h"
#include "millrace/tokenizer/tokenizer.h"

namespace {

using millrace::AsBytes;
using millrace::tokenizer::TokenId;

/// A length-delimited protobuf field.
std::string Field(int number, std::string_view bytes) {
  std::string field(1, static_cast<char>(number << 3 | 2));
  std::size_t size = bytes.size();
  for (; size >= 128; size >>= 7) field += static_cast<char>(size | 128);
  return (field += static_cast<char>(size)) += bytes;
}
std::string Number(int number, int value) {  // for values below 128
  std::string field;
  int tag = number << 3;
  for (; tag >= 128; tag >>= 7) field += static_cast<char>(tag | 128);
  return (field += static_cast<char>(tag)) += static_cast<char>(value);
}

std::string Piece(std::string_view text, float score, int type) {
  std::string bytes(reinterpret_cast<const char*>(&score), sizeof score);
  return Field(1, Field(1, text) + '\x15' + bytes + Number(3, type));
}

/// Llama 2's settings; pieces are runs of a small alphabet, drawn by `choice`, of which some have the same score.
std::string MakeModel(std::string_view choice) {
  static constexpr std::string_view kAlphabet[] = {"a", "b", "\xE2\x96\x81", "\xE6\x95\xB0", "\n", "\xEF\xBF\xBD"};
  std::string model = Piece("<unk>", 0, 2) + Piece("<s>", 0, 3) + Piece("</s>", 0, 3);
  for (int byte = 0; byte < 256; ++byte) model += Piece(fmt::format("<0x{:02X}>", byte), 0, 6);
  std::vector<std::string> seen;
  for (std::size_t i = 0; i + 1 < choice.size(); i += 2) {
    std::string text;
    auto bits = static_cast<unsigned>(static_cast<unsigned char>(choice[i]));
    for (unsigned rest = bits + 1; rest > 0; rest /= 6) text += kAlphabet[rest % 6];
    if (std::ranges::find(seen, text) != seen.end()) continue;
    seen.push_back(text);
    model += Piece(text, -static_cast<float>(choice[i + 1] & 15), 1);
  }
  model += Field(2, Number(3, 2) + Number(35, 1));
  return model + Field(3, Number(3, 1) + Number(4, 0) + Number(5, 1));
}

void CompareWithLibrary(std::string_view choice, std::string_view text) {
  std::string model = MakeModel(choice);
  sentencepiece::SentencePieceProcessor library;
  if (!library.LoadFromSerializedProto(model).ok()) std::abort();
  auto ours = millrace::tokenizer::Load(AsBytes(model), "fuzz").value();
  std::vector<int> expected;
  std::vector<TokenId> ids;
  if (!library.Encode({text.data(), text.size()}, &expected).ok() || !ours->Encode(text, ids)) std::abort();
  if (ids != expected) std::abort();
}

/// One encoder for each way to split.
const std::vector<std::shared_ptr<const millrace::tokenizer::Tokenizer>>& ByteLevels() {
  static const auto make = [](const char* name) {
    std::string ranks;
    for (int byte = 0; byte < 256; ++byte) {
      ranks += fmt::format("{} {}\n", millrace::Base64Encode(AsBytes(std::string(1, static_cast<char>(byte)))), byte);
    }
    int rank = 256;
    for (std::string_view token : {"aa", "ab", " a", "ba", "aaaa", "aba", "\xE6\x95", "\xB0\xE6", "\n\n", "xyz"}) {
      ranks += fmt::format("{} {}\n", millrace::Base64Encode(AsBytes(token)), rank++);
    }
    return millrace::tokenizer::Load(AsBytes(ranks), "fuzz", {.pattern = name}).value();
  };
  static const std::vector all = {make("gpt2"), make("cl100k"), make("llama3"), make("qwen"), make("o200k")};
  return all;
}

void CheckRoundTrip(std::string_view text) {
  for (const auto& tokenizer : ByteLevels()) {
    std::vector<TokenId> ids;
    if (!tokenizer->Encode(text, ids) || tokenizer->Decode(ids).value() != text) std::abort();
    std::string streamed;
    millrace::tokenizer::StreamDecoder decoder(*tokenizer);
    for (TokenId id : ids) {
      if (!decoder.Add(id, streamed)) std::abort();
    }
    decoder.Finish(streamed);
    if (streamed != text) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string_view input(reinterpret_cast<const char*>(data), size);
  std::string_view choice = input.substr(0, 64);
  CompareWithLibrary(choice, input.substr(choice.size()));
  CheckRoundTrip(input);
  return 0;
}
