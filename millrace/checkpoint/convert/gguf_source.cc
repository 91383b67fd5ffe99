#include "millrace/checkpoint/convert/gguf_source.h"

#include <cstring>
#include <utility>

#include "millrace/checkpoint/format/manifest.h"
#include "millrace/checkpoint/gguf/gguf_model.h"

namespace millrace::checkpoint {

Result<ImportSource> OpenGgufSource(const object::Location& file, const SourceOptions& options, object::Call call) {
  OpenedGguf opened = MR_TRY(OpenGgufFile(file, options.config, std::move(call)));
  const std::size_t slash = file.key.rfind('/');
  const std::string name = file.key.substr(slash == file.key.npos ? 0 : slash + 1);
  ImportSource source{.format = ForeignFormat::kGguf,
                      .folder = {file.store, file.key.substr(0, file.key.size() - name.size())},
                      .name = fmt::format("{}/{}", file.store->Describe(), file.key)};
  source.files.emplace(name, opened.info);
  GgufModel& model = opened.model;
  source.meta[std::string(kMetaModelConfig)] = std::move(model.config);
  if (!model.transposed.empty()) source.meta[std::string(kMetaTransposed)] = std::move(model.transposed);
  for (GgufPart& part : model.parts) {
    const std::string tensor = std::string(kModelGroup) + part.name;
    source.tensors.emplace(tensor, part.meta);
    SourceBox box{.tensor = tensor, .file = name, .offset = part.offset};
    if (part.head_rows > 0 || BlockElements(part.type) > 1) {
      const std::uint64_t stored_unit = part.stored_unit_bytes(), unit = part.unit_bytes();
      auto decode = [part = std::move(part)](ByteSpan stored, MutableByteSpan elements) {
        part.Decode(stored, elements);
      };
      box.coding = std::make_shared<const SourceCoding>(SourceCoding{stored_unit, unit, std::move(decode)});
    }
    source.boxes.push_back(std::move(box));
  }
  if (model.tokenizer.files.empty()) {
    source.notes.push_back("the file's tokenizer is not imported: " + model.tokenizer.refusal);
  }
  for (auto& [file, text] : model.tokenizer.files) {
    const std::string tensor = std::string(kFilesGroup) + file;
    const std::uint64_t size = text.size();
    source.tensors.emplace(tensor, TensorMeta{DType::kU8, {static_cast<std::int64_t>(size)}});
    // The header's bytes, which the vocabulary was made of.
    auto decode = [content = std::move(text)](ByteSpan, MutableByteSpan elements) {
      std::memcpy(elements.data(), content.data(), elements.size());
    };
    source.boxes.push_back(
        {.tensor = tensor,
         .file = name,
         .offset = 0,
         .coding = std::make_shared<const SourceCoding>(SourceCoding{model.header_bytes, size, std::move(decode)})});
  }
  return source;
}

}  // namespace millrace::checkpoint
