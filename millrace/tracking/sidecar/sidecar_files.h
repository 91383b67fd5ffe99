// The Python programs of sidecars. Embedded at build time, so that the programs need no file beside them.
#pragma once

#include <string_view>

namespace millrace::tracking {

extern const std::string_view kWandbSidecar;     ///< wandb_sidecar.py
extern const std::string_view kCallbackSidecar;  ///< callback_sidecar.py

}  // namespace millrace::tracking
