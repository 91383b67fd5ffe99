#include "millrace/nvml/nvml.h"

#include <dlfcn.h>
#include <unistd.h>

#include <utility>

#include "millrace/base/text.h"

namespace millrace::nvml {
namespace {

// Values of NVML's documented, versioned interface.
constexpr int kUncorrected = 1, kSinceLoaded = 0;  // NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC
constexpr int kChip = 0;                           // NVML_TEMPERATURE_GPU
constexpr unsigned kMaxLinks = 18;                 // NVML_NVLINK_MAX_LINKS
constexpr std::pair<unsigned long long, const char*> kSlowdowns[] = {
    {0x08, "the hardware"}, {0x20, "heat (the driver)"}, {0x40, "heat (the hardware)"}, {0x80, "a power brake"}};

/// One loaded NVML. Names and layouts follow its documented interface.
class Nvml {
 public:
  static std::unique_ptr<Nvml> Load(const std::string& library) {
    void* handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) return nullptr;
    std::unique_ptr<Nvml> nvml(new Nvml(handle));
    const bool whole = nvml->init_ && nvml->shutdown_ && nvml->count_ && nvml->handle_ && nvml->name_ && nvml->memory_;
    return whole ? std::move(nvml) : nullptr;
  }
  ~Nvml() {
    if (ready_) shutdown_();
    ::dlclose(library_);
  }
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  Status Start() {
    if (const int status = init_(); status != 0) {
      return Fail(Code::kUnavailable, "the NVIDIA driver answers with error {}", status);
    }
    ready_ = true;
    return {};
  }

  /// REQUIRES: Start() was called.
  Result<std::vector<GpuState>> Read() {
    unsigned count = 0;
    if (const int status = count_(&count); status != 0) return Fail(Code::kUnavailable, "NVML error {}", status);
    std::vector<GpuState> gpus;
    for (unsigned i = 0; i < count; ++i) {
      void* device = nullptr;
      char name[96] = "";
      Memory memory{};
      if (handle_(i, &device) != 0 || name_(device, name, sizeof name) != 0 || memory_(device, &memory) != 0) {
        return Fail(Code::kUnavailable, "device {} does not answer", i);
      }
      GpuState gpu{.name = name, .total = memory.total, .free = memory.free, .load = LoadOf(device)};
      AddHealth(device, gpu);
      gpus.push_back(std::move(gpu));
    }
    return gpus;
  }

  /// Returns the device with this address on the PCI bus; null if there is none.
  void* Find(const std::string& pci_bus_id) const {
    void* device = nullptr;
    return by_bus_id_ && by_bus_id_(pci_bus_id.c_str(), &device) == 0 ? device : nullptr;
  }

  GpuLoad LoadOf(void* device) const {
    GpuLoad load;
    Utilization busy{};
    unsigned celsius = 0, milliwatts = 0;
    if (utilization_ && utilization_(device, &busy) == 0) load.utilization = static_cast<int>(busy.chip);
    if (temperature_ && temperature_(device, kChip, &celsius) == 0) load.celsius = static_cast<int>(celsius);
    if (power_ && power_(device, &milliwatts) == 0) load.watts = milliwatts / 1e3;
    return load;
  }

 private:
  struct Memory {
    unsigned long long total, free, used;
  };
  struct Utilization {
    unsigned chip, memory;  // per cent
  };

  explicit Nvml(void* library) : library_(library) {
    Find(init_, "nvmlInit_v2");
    Find(shutdown_, "nvmlShutdown");
    Find(count_, "nvmlDeviceGetCount_v2");
    Find(handle_, "nvmlDeviceGetHandleByIndex_v2");
    Find(name_, "nvmlDeviceGetName");
    Find(memory_, "nvmlDeviceGetMemoryInfo");
    Find(utilization_, "nvmlDeviceGetUtilizationRates");
    Find(temperature_, "nvmlDeviceGetTemperature");
    Find(power_, "nvmlDeviceGetPowerUsage");
    Find(ecc_, "nvmlDeviceGetTotalEccErrors");
    Find(remapped_, "nvmlDeviceGetRemappedRows");
    Find(slowdowns_, "nvmlDeviceGetCurrentClocksThrottleReasons");
    Find(link_, "nvmlDeviceGetNvLinkState");
    Find(by_bus_id_, "nvmlDeviceGetHandleByPciBusId_v2");
  }
  template <class Function>
  void Find(Function*& function, const char* name) {
    function = reinterpret_cast<Function*>(::dlsym(library_, name));
  }

  /// Old libraries lack some of the functions, and small devices some of the parts.
  void AddHealth(void* device, GpuState& gpu) {
    unsigned long long errors = 0, reasons = 0;
    if (ecc_ && ecc_(device, kUncorrected, kSinceLoaded, &errors) == 0) gpu.uncorrectable_errors = errors;
    unsigned corrected = 0, uncorrected = 0, pending = 0, failed = 0;
    if (remapped_ && remapped_(device, &corrected, &uncorrected, &pending, &failed) == 0) {
      gpu.remap_pending = pending != 0;
      gpu.remap_failed = failed != 0;
    }
    if (slowdowns_ && slowdowns_(device, &reasons) == 0) {
      for (const auto& [bit, reason] : kSlowdowns) {
        if ((reasons & bit) != 0) gpu.slowdowns.emplace_back(reason);
      }
    }
    for (unsigned link = 0; link_ && link < kMaxLinks; ++link) {
      unsigned active = 0;
      if (link_(device, link, &active) != 0) continue;
      ++(active != 0 ? gpu.links_up : gpu.links_down);
    }
  }

  void* library_;
  bool ready_ = false;
  int (*init_)() = nullptr;
  int (*shutdown_)() = nullptr;
  int (*count_)(unsigned*) = nullptr;
  int (*handle_)(unsigned, void**) = nullptr;
  int (*name_)(void*, char*, unsigned) = nullptr;
  int (*memory_)(void*, Memory*) = nullptr;
  int (*utilization_)(void*, Utilization*) = nullptr;
  int (*temperature_)(void*, int, unsigned*) = nullptr;
  int (*power_)(void*, unsigned*) = nullptr;
  int (*ecc_)(void*, int, int, unsigned long long*) = nullptr;
  int (*remapped_)(void*, unsigned*, unsigned*, unsigned*, unsigned*) = nullptr;
  int (*slowdowns_)(void*, unsigned long long*) = nullptr;
  int (*link_)(void*, unsigned, unsigned*) = nullptr;
  int (*by_bus_id_)(const char*, void**) = nullptr;
};

}  // namespace

std::string GpuState::ToText() const {
  std::string text = fmt::format("{} ({} free of {})", name, FormatBytes(free), FormatBytes(total));
  if (load.utilization) text += fmt::format(", {} % busy", *load.utilization);
  if (load.celsius) text += fmt::format(", {} °C", *load.celsius);
  if (load.watts) text += fmt::format(", {:.0f} W", *load.watts);
  return text;
}

Result<std::optional<std::vector<GpuState>>> ReadGpus(const std::string& library, const std::string& control) {
  const std::unique_ptr<Nvml> nvml = Nvml::Load(library);
  if (!nvml && ::access(control.c_str(), F_OK) == 0) {
    const char* why = ::dlerror();
    return Fail(Code::kUnavailable, "there is an NVIDIA driver, but {} cannot be used: {}", library,
                why != nullptr ? why : "it lacks functions");
  }
  if (!nvml) return std::optional<std::vector<GpuState>>();
  MR_TRY(nvml->Start());
  return std::optional(MR_TRY(nvml->Read()));
}

struct GpuMeter::Rep {
  std::unique_ptr<Nvml> nvml;
  void* device = nullptr;
};

GpuMeter::GpuMeter(std::unique_ptr<Rep> rep) : rep_(std::move(rep)) {}
GpuMeter::~GpuMeter() = default;

std::unique_ptr<GpuMeter> GpuMeter::Open(const std::string& library, const std::string& pci_bus_id) {
  std::unique_ptr<Nvml> nvml = Nvml::Load(library);
  if (!nvml || !nvml->Start()) return nullptr;
  void* const device = nvml->Find(pci_bus_id);
  if (device == nullptr) return nullptr;
  auto rep = std::make_unique<Rep>();
  rep->nvml = std::move(nvml);
  rep->device = device;
  return std::unique_ptr<GpuMeter>(new GpuMeter(std::move(rep)));
}

GpuLoad GpuMeter::Read() const { return rep_->nvml->LoadOf(rep_->device); }

}  // namespace millrace::nvml
