#include "millrace/checkpoint/convert/open_source.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "millrace/base/result.h"
#include "millrace/checkpoint/convert/deepspeed/deepspeed_source.h"
#include "millrace/checkpoint/convert/huggingface/hf_folder.h"
#include "millrace/checkpoint/convert/huggingface/hf_source.h"
#include "millrace/checkpoint/convert/megatron/megatron_source.h"
#include "millrace/checkpoint/convert/model_state.h"
#include "millrace/checkpoint/convert/tensors/import_source.h"
#include "millrace/checkpoint/convert/torch/dcp_source.h"
#include "millrace/checkpoint/convert/torch/torch_file.h"
#include "millrace/checkpoint/format/manifest.h"
#include "millrace/checkpoint/gguf/gguf_model.h"
#include "millrace/checkpoint/read/gguf_reader.h"
#include "millrace/checkpoint/read/model_source.h"
#include "millrace/object/blocking.h"

namespace millrace::checkpoint {
namespace {

constexpr std::string_view kTorchSuffixes[] = {".pt", ".pth", ".bin", ".ckpt"};

bool IsTorchFile(std::string_view name) {
  return std::any_of(std::begin(kTorchSuffixes), std::end(kTorchSuffixes),
                     [&](std::string_view suffix) { return name.ends_with(suffix); });
}

/// Opens a GGUF file of llama.cpp. `file` is the key of the file. Quantized tensors become F32, others keep their
/// types. The vocabulary becomes tokenizer.model or tokenizer.json. options.config replaces what the metadata say of
/// the model. Blocks. Errors: those of OpenGgufFile.
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
    if (file == kGenerationConfigFile) {
      source.meta[std::string(kMetaGenerationConfig)] = MR_TRY(ParseJson(text, file));
      continue;
    }
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

/// Takes the model out of a state, if its configuration is known.
Result<ImportSource> AsModel(ImportSource state, const SourceOptions& options) {
  if (options.config) MR_TRY(TakeModel(*options.config, state));
  return state;
}

}  // namespace

Result<ForeignFormat> DetectForeignFormat(object::Connection& connection, std::string_view url, object::Call call) {
  if (url.ends_with(".safetensors")) return ForeignFormat::kHuggingFace;
  if (IsGgufUrl(url)) return ForeignFormat::kGguf;
  const object::Location folder = MR_TRY(LocateFolder(connection, url));
  const auto files = MR_TRY(FilesOf(folder, call));
  if (IsMegatronFolder(files)) return ForeignFormat::kMegatron;
  if (files.contains(".metadata")) return ForeignFormat::kDcp;
  if (files.contains("adapter_config.json")) return ForeignFormat::kPeft;
  for (const auto& [name, info] : files)
    if (name.ends_with(".safetensors") || name.starts_with("pytorch_model")) return ForeignFormat::kHuggingFace;
  if (IsDeepSpeedFolder(files)) return ForeignFormat::kDeepSpeed;
  if (files.empty()) {
    if (IsTorchFile(url)) return ForeignFormat::kTorch;
    if (MR_TRY(object::Head(*folder.store, folder.key.substr(0, folder.key.size() - !folder.key.empty()), call)))
      return ForeignFormat::kTorch;
  }
  if (files.empty()) return Fail(Code::kNotFound, "there is nothing at {}; `millrace ls` lists what is there", url);
  return Fail(Code::kNotFound,
              "{} cannot be imported: give a file of torch.save or llama.cpp (*.gguf), or a folder with one of\n"
              "*.safetensors, pytorch_model.bin, adapter_config.json, .metadata (torch), "
              "latest_checkpointed_iteration.txt (Megatron), latest (DeepSpeed)",
              NameOf(folder));
}

Result<ImportSource> OpenSource(object::Connection& connection, std::string_view url, ForeignFormat format,
                                object::Call call, const SourceOptions& options) {
  if (format == ForeignFormat::kGguf)
    return OpenGgufSource(MR_TRY(object::Locate(connection, url)), options, std::move(call));
  if (format == ForeignFormat::kTorch) {
    return AsModel(MR_TRY(OpenTorchFile(MR_TRY(object::Locate(connection, url)), std::move(call))), options);
  }
  // A single file of weights: its key does not end with a slash.
  if (url.ends_with(".safetensors"))
    return OpenHuggingFaceFolder(MR_TRY(object::Locate(connection, url)), format, std::move(call));
  const object::Location folder = MR_TRY(LocateFolder(connection, url));
  if (format == ForeignFormat::kDcp) return AsModel(MR_TRY(OpenDcpFolder(folder, std::move(call))), options);
  if (format == ForeignFormat::kMegatron) return OpenMegatronFolder(folder, options, std::move(call));
  if (format == ForeignFormat::kDeepSpeed) return OpenDeepSpeedFolder(folder, options, std::move(call));
  return OpenHuggingFaceFolder(folder, format, std::move(call));
}

Result<Json> ReadModelConfig(object::Connection& connection, std::string_view url, object::Call call) {
  const object::Location file = MR_TRY(object::Locate(connection, url));
  auto content = MR_TRY(object::GetAll(*file.store, file.key, kMaxConfigBytes, std::move(call)));
  if (!content) return Fail(Code::kNotFound, "{} does not exist; `millrace ls` lists what is there", url);
  Json config = MR_TRY(ParseJson(content->bytes, url));
  if (!config.is_object()) return Fail(Code::kInvalidArgument, "{} must be a JSON object", url);
  return config;
}

}  // namespace millrace::checkpoint
