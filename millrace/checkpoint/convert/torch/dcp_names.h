// Names of files and classes of torch.distributed.checkpoint. Only for the sources of this module.
#pragma once

#include <string_view>

namespace millrace::checkpoint {

inline constexpr std::string_view kDcpMetadataFile = ".metadata";
inline constexpr std::string_view kDcpModule = "torch.distributed.checkpoint.metadata";
inline constexpr std::string_view kDcpMetadata = "torch.distributed.checkpoint.metadata.Metadata";
inline constexpr std::string_view kDcpTensor = "torch.distributed.checkpoint.metadata.TensorStorageMetadata";
inline constexpr std::string_view kDcpBytes = "torch.distributed.checkpoint.metadata.BytesStorageMetadata";

}  // namespace millrace::checkpoint
