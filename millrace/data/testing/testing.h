// Helpers for tests of this module: a tokenizer whose ids are easy to compute, and corpora in memory.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "millrace/base/hash/crc.h"
#include "millrace/base/hash/random.h"
#include "millrace/base/json.h"
#include "millrace/data/dataset.h"
#include "millrace/object/blocking.h"
#include "millrace/object/connection.h"
#include "millrace/object/local/memory_store.h"

namespace millrace::data::testing {

/// A tokenizer with one token for each byte: its value plus 3.
class ByteTokenizer : public tokenizer::Tokenizer {
 public:
  explicit ByteTokenizer(TokenId bos = 1, TokenId eos = 2, std::string fingerprint = "bytes")
      : bos_(bos), eos_(eos), fingerprint_(std::move(fingerprint)) {}
  Status Encode(std::string_view text, std::vector<TokenId>& ids) const override {
    for (char c : text) ids.push_back(static_cast<unsigned char>(c) + 3);
    return {};
  }
  Result<std::string> Decode(std::span<const TokenId> ids) const override {
    std::string text;
    for (TokenId id : ids) {
      if (id >= 3) text += static_cast<char>(id - 3);
    }
    return text;
  }
  Result<std::string> Piece(TokenId id) const override { return std::to_string(id); }
  int vocab_size() const override { return 259; }
  TokenId bos() const override { return bos_; }
  TokenId eos() const override { return eos_; }
  TokenId unk() const override { return 0; }
  std::string_view kind() const override { return "bytes"; }
  const std::string& fingerprint() const override { return fingerprint_; }

 private:
  TokenId bos_, eos_;
  std::string fingerprint_;
};

/// A connection with one store for each name of a bucket.
class TestConnection final : public object::Connection {
 public:
  std::shared_ptr<object::Store>& operator[](const std::string& bucket) { return stores_[bucket]; }
  Result<std::shared_ptr<object::Store>> OpenStore(const object::Url& url) override {
    auto at = stores_.find(url.bucket);
    if (at == stores_.end()) return Fail(Code::kNotFound, "no bucket {}", url.bucket);
    return at->second;
  }
  Result<std::shared_ptr<object::Service>> OpenService() override { return Fail(Code::kUnsupported, "no service"); }

 private:
  std::map<std::string, std::shared_ptr<object::Store>> stores_;
};

inline std::string RecordLine(std::string_view title, std::string_view text) {
  return DumpJson({{"id", 7}, {"title", title}, {"text", text}}) + "\n";
}

/// Returns `count` documents with texts of up to `longest` characters. Each names its source and number, so all differ.
inline std::vector<std::string> MakeTexts(std::string_view source, int count, int longest, std::uint64_t seed) {
  Random random(seed);
  std::vector<std::string> texts;
  for (int i = 0; i < count; ++i) {
    std::string text = fmt::format("{}-{}:", source, i);
    for (std::uint64_t n = random.Below(longest); n > 0; --n) text += static_cast<char>('a' + random.Below(26));
    texts.push_back(std::move(text));
  }
  return texts;
}

inline std::string ToJsonl(const std::vector<std::string>& texts) {
  std::string lines;
  for (const std::string& text : texts) lines += DumpJson({{"text", text}}) + "\n";
  return lines;
}

inline void PutText(object::Store& store, std::string key, std::string_view content) {
  object::Put(store, std::move(key), AsBytes(content)).value();
}

}  // namespace millrace::data::testing
