#include "millrace/tokenizer/open/open.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <optional>
#include <utility>

#include "millrace/checkpoint/gguf/gguf_model.h"
#include "millrace/checkpoint/read/gguf_reader.h"
#include "millrace/checkpoint/read/model_source.h"
#include "millrace/object/blocking.h"
#include "millrace/tokenizer/formats/byte_pair_files.h"
#include "millrace/tokenizer/formats/declared_tokens.h"
#include "millrace/tokenizer/formats/load.h"

namespace millrace::tokenizer {
namespace {

constexpr std::uint64_t kMaxFileBytes = 256 * kMiB;  // JsonLimits::bytes: no larger tokenizer.json could be parsed
constexpr std::string_view kFileNames[] = {"tokenizer.json", "tokenizer.model", "vocab.txt"};

/// A guess: configurations with many added tokens have some megabytes.
constexpr std::uint64_t kMaxConfigBytes = 16 * kMiB;

constexpr std::string_view kVocab = "vocab.json", kMerges = "merges.txt";

/// Loads the tokenizer of a vocab.json with the merges.txt beside it. `read` reads files beside it, and `folder` is for
/// messages.
Result<std::shared_ptr<const Tokenizer>> LoadBytePairs(std::string_view vocab, const ReadSibling& read,
                                                       std::string_view folder) {
  constexpr std::string_view kConfig = "tokenizer_config.json";
  const auto merges = MR_TRY(read(kMerges));
  if (!merges) {
    return Fail(Code::kNotFound,
                "{}/{}: there is no {} beside it; copy it there from the model, or use its tokenizer.json", folder,
                kVocab, kMerges);
  }
  const auto config = MR_TRY(read(kConfig));
  BytePairFiles files{.vocab = vocab, .merges = *merges, .config = Json::object()};
  if (config) files.config = MR_TRY(ParseJson(*config, fmt::format("{}/{}", folder, kConfig)));
  const auto json = MakeTokenizerJson(files);
  if (!json) return Fail(json.error().Context(std::string(folder)));
  return Load(AsBytes(*json), fmt::format("{}/{}", folder, kVocab));
}

/// Gives a tokenizer the tokens that the files beside it declare.
Result<std::shared_ptr<const Tokenizer>> Declare(std::shared_ptr<const Tokenizer> tokenizer, const ReadSibling& read,
                                                 std::string_view folder, const Logger& log) {
  return WithDeclaredTokens(std::move(tokenizer), MR_TRY(ReadDeclaredTokens(read, folder)), log);
}

/// Opens a tokenizer's file. Files that have the name of one in a model's folder may have declarations beside them.
Result<std::shared_ptr<const Tokenizer>> OpenFile(const object::Location& file, std::string_view bytes,
                                                  std::string_view url, const Logger& log, const object::Call& call) {
  const std::string folder = file.key.substr(0, file.key.rfind('/') + 1);
  const std::string_view name = std::string_view(file.key).substr(folder.size());
  const std::string_view folder_url = url.substr(0, url.rfind('/'));
  const auto read = [&](std::string_view sibling) -> Result<std::optional<std::string>> {
    auto content = MR_TRY(object::GetAll(*file.store, folder + std::string(sibling), kMaxConfigBytes, call));
    if (!content) return std::optional<std::string>();
    return std::move(content->bytes);
  };
  auto tokenizer = MR_TRY(name == kVocab ? LoadBytePairs(bytes, read, folder_url) : Load(AsBytes(bytes), url));
  if (name != kVocab && std::ranges::find(kFileNames, name) == std::end(kFileNames)) return tokenizer;
  return Declare(std::move(tokenizer), read, folder_url, log);
}

/// Opens the tokenizer of a GGUF file, whose model may be one that cannot be loaded.
Result<std::shared_ptr<const Tokenizer>> OpenGgufTokenizer(const object::Location& file, const Logger& log,
                                                           object::Call call) {
  const std::string name = fmt::format("{}/{}", file.store->Describe(), file.key);
  const auto read = MR_TRY(checkpoint::ReadGgufHeader(file, std::move(call)));
  const checkpoint::GgufTokenizer tokenizer = checkpoint::TokenizerOf(read.header);
  for (const std::string_view form : kFileNames) {
    const auto found = tokenizer.files.find(std::string(form));
    if (found == tokenizer.files.end()) continue;
    const auto read = [&](std::string_view file_name) -> Result<std::optional<std::string>> {
      const auto sibling = tokenizer.files.find(std::string(file_name));
      return sibling == tokenizer.files.end() ? std::nullopt : std::optional(sibling->second);
    };
    return Declare(MR_TRY(Load(AsBytes(found->second), name)), read, name, log);
  }
  return Fail(Code::kUnsupported, "{}: {}", name, tokenizer.refusal);
}

}  // namespace

Result<std::shared_ptr<const Tokenizer>> OpenModelTokenizer(const checkpoint::ModelSource& model, const Logger& log,
                                                            object::Call call) {
  std::optional<Error> first;
  for (const std::string_view file : kFileNames) {
    const auto bytes = MR_TRY(model.File(file, kMaxFileBytes, call));
    if (!bytes) continue;
    auto loaded = Load(AsBytes(*bytes), fmt::format("{}/{}", model.name(), file));
    if (loaded) {
      if (first) log.Warning("another form of the model's tokenizer is used", {{"file", file}, {"why", *first}});
      const auto read = [&](std::string_view sibling) { return model.File(sibling, kMaxConfigBytes, call); };
      return Declare(*std::move(loaded), read, model.name(), log);
    }
    if (loaded.error().code() != Code::kUnsupported) return loaded;
    if (!first) first = loaded.error();
  }
  if (first) return Fail(*first);
  const auto vocab = MR_TRY(model.File(kVocab, kMaxFileBytes, call));
  if (vocab) {
    const auto read = [&](std::string_view sibling) { return model.File(sibling, kMaxConfigBytes, call); };
    return Declare(MR_TRY(LoadBytePairs(*vocab, read, model.name())), read, model.name(), log);
  }
  return Fail(Code::kNotFound,
              "{} has no tokenizer: neither tokenizer.json nor tokenizer.model nor vocab.txt nor vocab.json",
              model.name());
}

Result<std::shared_ptr<const Tokenizer>> OpenTokenizer(object::Connection& connection, std::string_view url,
                                                       const Logger& log, object::Call call) {
  const object::Location location = MR_TRY(object::Locate(connection, url));
  if (checkpoint::IsGgufUrl(url)) return OpenGgufTokenizer(location, log, std::move(call));
  if (!location.key.empty() && !location.key.ends_with('/')) {
    const auto content = MR_TRY(object::GetAll(*location.store, location.key, kMaxFileBytes, call));
    if (content) return OpenFile(location, content->bytes, url, log, call);
  }
  auto model = checkpoint::ModelSource::Open(connection, url, std::nullopt, log, call);
  if (!model && model.error().code() == Code::kNotFound) {
    // If the bucket is missing, returns that error instead.
    if (auto listed = object::List(*location.store, {.max_keys = 1}, call); !listed) return Fail(listed.error());
    return Fail(Code::kNotFound,
                "there is no tokenizer at {}, nor a model that has one; make one with `millrace tokenizer train`", url);
  }
  if (!model) return Fail(model.error());
  return OpenModelTokenizer(*model, log, std::move(call));
}

}  // namespace millrace::tokenizer
