// The GPUs of a machine, seen through NVIDIA's management library (NVML), which is loaded at run time: the driver
// installs it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "millrace/base/result.h"

namespace millrace::nvml {

/// The library's name, as the driver installs it.
inline constexpr const char* kLibrary = "libnvidia-ml.so.1";

/// The device that is there where a driver is, in a container too if it sees a GPU.
inline constexpr const char* kControlDevice = "/dev/nvidiactl";

/// The present load of a GPU. What a device does not have, it does not report as an error.
struct GpuLoad {
  std::optional<int> utilization;  ///< per cent of the last second or less in which it computed
  std::optional<int> celsius;      ///< of the chip
  std::optional<double> watts;     ///< that it draws
};

/// A GPU as the driver shows it.
struct GpuState {
  std::string name;
  std::uint64_t total = 0, free = 0;  ///< bytes of its memory
  GpuLoad load = {};
  std::uint64_t uncorrectable_errors = 0;   ///< of ECC, since the driver was loaded
  bool remap_pending = false;               ///< rows of its memory are replaced at the next reset
  bool remap_failed = false;                ///< there are no spare rows
  std::vector<std::string> slowdowns = {};  ///< "heat", "power brake", "the hardware"
  int links_up = 0, links_down = 0;         ///< NVLinks

  /// "NVIDIA H100 80GB HBM3 (79.0 GB free of 80.0 GB), 97 % busy, 61 °C, 412 W"
  std::string ToText() const;
};

/// Returns the state of all devices. Nothing if there is no driver. Blocks for up to some seconds.
/// Errors: kUnavailable if the driver or a device does not answer, or if `control` exists but the library cannot be
/// loaded.
Result<std::optional<std::vector<GpuState>>> ReadGpus(const std::string& library,
                                                      const std::string& control = kControlDevice);

/// Reads the load of one GPU again and again. One thread at a time.
class GpuMeter {
 public:
  /// `pci_bus_id`: as CUDA names it: "0000:3B:00.0". Null without a driver, or without such a device.
  static std::unique_ptr<GpuMeter> Open(const std::string& library, const std::string& pci_bus_id);
  ~GpuMeter();
  GpuMeter(const GpuMeter&) = delete;
  GpuMeter& operator=(const GpuMeter&) = delete;

  /// Takes less than a millisecond.
  GpuLoad Read() const;

 private:
  struct Rep;
  explicit GpuMeter(std::unique_ptr<Rep> rep);
  const std::unique_ptr<Rep> rep_;
};

}  // namespace millrace::nvml
