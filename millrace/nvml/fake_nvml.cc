// An NVML for tests. Its devices are in the file that $FAKE_NVML names, one a line:
//   ECC_ERRORS REMAP_PENDING REMAP_FAILED SLOWDOWN_BITS LINKS_UP LINKS_DOWN
// An empty $FAKE_NVML is a driver that does not answer.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <vector>

namespace {

struct Device {
  unsigned long long errors = 0;
  unsigned pending = 0, failed = 0;
  unsigned long long slowdowns = 0;
  unsigned links_up = 0, links_down = 0;
};

std::vector<Device>& Devices() {
  static std::vector<Device> devices;
  return devices;
}

constexpr int kNotSupported = 3, kNotFound = 6, kDriverNotLoaded = 9;

}  // namespace

extern "C" {

int nvmlInit_v2() {
  const char* path = std::getenv("FAKE_NVML");
  if (path == nullptr || *path == '\0') return kDriverNotLoaded;
  Devices().clear();
  std::ifstream file(path);
  for (Device d; file >> d.errors >> d.pending >> d.failed >> d.slowdowns >> d.links_up >> d.links_down;) {
    Devices().push_back(d);
  }
  return 0;
}
int nvmlShutdown() { return 0; }
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = static_cast<unsigned>(Devices().size());
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  *device = &Devices().at(index);
  return 0;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char* bus_id, void** device) {
  unsigned domain = 0, index = 0;  // the bus is the number of the device
  if (std::sscanf(bus_id, "%x:%x:", &domain, &index) != 2 || index >= Devices().size()) return kNotFound;
  *device = &Devices().at(index);
  return 0;
}
int nvmlDeviceGetName(void*, char* name, unsigned size) {
  std::strncpy(name, "NVIDIA Fake 100", size);
  return 0;
}
int nvmlDeviceGetMemoryInfo(void*, unsigned long long* memory) {
  memory[0] = 80'000'000'000;
  memory[1] = 79'000'000'000;
  memory[2] = 1'000'000'000;
  return 0;
}
int nvmlDeviceGetUtilizationRates(void*, unsigned* rates) {
  rates[0] = 97;
  rates[1] = 40;
  return 0;
}
int nvmlDeviceGetTemperature(void*, int sensor, unsigned* celsius) {
  if (sensor != 0) return kNotSupported;
  *celsius = 61;
  return 0;
}
int nvmlDeviceGetPowerUsage(void* device, unsigned* milliwatts) {
  if (device != Devices().data()) return kNotSupported;  // as of some cards
  *milliwatts = 412'300;
  return 0;
}
int nvmlDeviceGetTotalEccErrors(void* device, int type, int counter, unsigned long long* errors) {
  if (type != 1 || counter != 0) return kNotSupported;
  *errors = static_cast<Device*>(device)->errors;
  return 0;
}
int nvmlDeviceGetRemappedRows(void* device, unsigned* corrected, unsigned* uncorrected, unsigned* pending,
                              unsigned* failed) {
  *corrected = *uncorrected = 0;
  *pending = static_cast<Device*>(device)->pending;
  *failed = static_cast<Device*>(device)->failed;
  return 0;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void* device, unsigned long long* reasons) {
  *reasons = static_cast<Device*>(device)->slowdowns;
  return 0;
}
int nvmlDeviceGetNvLinkState(void* device, unsigned link, unsigned* active) {
  const Device& d = *static_cast<Device*>(device);
  if (link >= d.links_up + d.links_down) return kNotSupported;
  *active = link < d.links_up ? 1 : 0;
  return 0;
}

}  // extern "C"
