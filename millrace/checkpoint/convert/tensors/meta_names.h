// Names of groups and meta members that only imports and exports use. The checkpoints of a training run lack them.
#pragma once

#include <string_view>

namespace millrace::checkpoint {

/// The member of a checkpoint's meta that holds the plain values of a Python state, each by its path.
inline constexpr std::string_view kMetaValues = "values";
/// The member of a checkpoint's meta that holds the key order of the state's dicts, and which are OrderedDicts.
inline constexpr std::string_view kMetaDicts = "dicts";
/// An entry of torch's formats: the checkpoint's meta as JSON text, without kMetaValues. A later import restores it.
inline constexpr std::string_view kMetaEntry = "millrace_meta";
/// A member of kMetaEntry in a folder of torch.distributed.checkpoint. It maps an entry's name to its path in the
/// checkpoint, if the path does not follow from the name.
inline constexpr std::string_view kMetaPaths = "dcp_paths";

}  // namespace millrace::checkpoint
