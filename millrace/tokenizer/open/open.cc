#include "millrace/tokenizer/open/open.h"

#include <cstdint>
#include <optional>
#include <utility>

#include "millrace/checkpoint/gguf/gguf_model.h"
#include "millrace/checkpoint/read/gguf_reader.h"
#include "millrace/object/blocking.h"
#include "millrace/tokenizer/load/load.h"

namespace millrace::tokenizer {
namespace {

constexpr std::uint64_t kMaxFileBytes = 256 * kMiB;  // JsonLimits::bytes: no larger tokenizer.json could be parsed
constexpr std::string_view kFileNames[] = {"tokenizer.json", "tokenizer.model", "vocab.txt"};

/// Opens the tokenizer of a GGUF file, whose model may be one that cannot be loaded.
Result<std::shared_ptr<const Tokenizer>> OpenGgufTokenizer(const object::Location& file, object::Call call) {
  const std::string name = fmt::format("{}/{}", file.store->Describe(), file.key);
  const auto read = MR_TRY(checkpoint::ReadGgufHeader(file, std::move(call)));
  const checkpoint::GgufTokenizer tokenizer = checkpoint::TokenizerOf(read.header);
  for (const std::string_view form : kFileNames) {
    const auto found = tokenizer.files.find(std::string(form));
    if (found != tokenizer.files.end()) return Load(AsBytes(found->second), name);
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
      return loaded;
    }
    if (loaded.error().code() != Code::kUnsupported) return loaded;
    if (!first) first = loaded.error();
  }
  if (first) return Fail(*first);
  return Fail(Code::kNotFound, "{} has no tokenizer: neither tokenizer.json nor tokenizer.model nor vocab.txt",
              model.name());
}

Result<std::shared_ptr<const Tokenizer>> OpenTokenizer(object::Connection& connection, std::string_view url,
                                                       const Logger& log, object::Call call) {
  const object::Location location = MR_TRY(object::Locate(connection, url));
  if (checkpoint::IsGgufUrl(url)) return OpenGgufTokenizer(location, std::move(call));
  if (!location.key.empty() && !location.key.ends_with('/')) {
    const auto content = MR_TRY(object::GetAll(*location.store, location.key, kMaxFileBytes, call));
    if (content) return Load(AsBytes(content->bytes), url);
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
