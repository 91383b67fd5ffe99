// Names that imports and exports give to what other formats have and checkpoints of a training run lack.
#pragma once

#include <string_view>

namespace millrace::checkpoint {

/// The weights of an adapter (LoRA), under the names that PEFT's files have.
inline constexpr std::string_view kAdapterGroup = "adapter/";
/// The member of a checkpoint's meta that holds the adapter's adapter_config.json.
inline constexpr std::string_view kMetaAdapterConfig = "adapter_config";
/// The member of a checkpoint's meta that has the plain values of a state of Python, each by its path.
inline constexpr std::string_view kMetaValues = "values";
/// The member of a checkpoint's meta that has the order of the dicts' keys.
inline constexpr std::string_view kMetaDicts = "dicts";
/// The entry of torch's formats that keeps what a checkpoint's meta has besides the values of the state.
inline constexpr std::string_view kMetaEntry = "millrace_meta";
/// In that entry of a folder of torch.distributed.checkpoint: the path in the checkpoint of each entry whose name does
/// not tell it.
inline constexpr std::string_view kMetaPaths = "dcp_paths";

}  // namespace millrace::checkpoint
