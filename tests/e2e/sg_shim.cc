// Preloaded into the tools of sg3_utils: a device whose name begins with /dev/sandbay is the socket
// that SANDBAY_SG names, and SG_IO a message to the test at its other end, which has an initiator.
// So these tools send commands to a target without a SCSI device in the kernel.
//
// A request: lengths of CDB, Data-Out and Data-In (4 bytes each, as the machine has them), CDB and
// data. An answer: status, lengths of sense data and Data-In, then both.
#include <dlfcn.h>
#include <scsi/sg.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string_view>

namespace {

constexpr std::size_t kLongestSense = 255;

template <class Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

int connect_to_test() {
  const char* path = std::getenv("SANDBAY_SG");
  const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path == nullptr || std::strlen(path) >= sizeof address.sun_path) return -1;
  std::strcpy(static_cast<char*>(address.sun_path), path);
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) return fd;
  close(fd);
  return -1;
}

bool send_all(int fd, const void* data, std::size_t byte_count) {
  return byte_count == 0 ||
         send(fd, data, byte_count, MSG_NOSIGNAL) == static_cast<ssize_t>(byte_count);
}

bool receive_all(int fd, void* data, std::size_t byte_count) {
  return byte_count == 0 ||
         recv(fd, data, byte_count, MSG_WAITALL) == static_cast<ssize_t>(byte_count);
}

bool pass_on(int fd, sg_io_hdr_t& io) {
  const bool out = io.dxfer_direction == SG_DXFER_TO_DEV;
  const bool in = io.dxfer_direction == SG_DXFER_FROM_DEV;
  const std::array<std::uint32_t, 3> request{io.cmd_len, out ? io.dxfer_len : 0,
                                             in ? io.dxfer_len : 0};
  if (!send_all(fd, request.data(), sizeof request) || !send_all(fd, io.cmdp, io.cmd_len) ||
      !send_all(fd, io.dxferp, request[1])) {
    return false;
  }
  std::array<std::uint32_t, 3> answer{};
  std::array<unsigned char, kLongestSense> sense{};
  if (!receive_all(fd, answer.data(), sizeof answer) || answer[1] > sense.size() ||
      answer[2] > request[2] || !receive_all(fd, sense.data(), answer[1]) ||
      !receive_all(fd, io.dxferp, answer[2])) {
    return false;
  }
  io.status = static_cast<unsigned char>(answer[0]);
  io.masked_status = io.status >> 1U;
  io.sb_len_wr = static_cast<unsigned char>(std::min<std::uint32_t>(answer[1], io.mx_sb_len));
  if (io.sbp != nullptr) std::memcpy(io.sbp, sense.data(), io.sb_len_wr);
  io.resid = static_cast<int>(request[1] != 0 ? 0 : request[2] - answer[2]);
  io.host_status = 0;
  io.driver_status = 0;
  io.info = io.status != 0 ? SG_INFO_CHECK : SG_INFO_OK;
  return true;
}

}  // namespace

extern "C" {

int open64(const char* path, int flags, unsigned mode) {
  if (std::string_view(path).starts_with("/dev/sandbay")) return connect_to_test();
  return next<int (*)(const char*, int, unsigned)>("open64")(path, flags, mode);
}

// That is open64() where the compiler checks its arguments.
int open64_checked(const char* path, int flags) asm("__open64_2");
int open64_checked(const char* path, int flags) { return open64(path, flags, 0); }

int ioctl(int fd, unsigned long request, void* argument) {
  sockaddr_un address{};
  socklen_t length = sizeof address;
  const bool ours = getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) == 0;
  if (ours && request == SG_IO) return pass_on(fd, *static_cast<sg_io_hdr_t*>(argument)) ? 0 : -1;
  if (ours && request == SG_GET_VERSION_NUM) {
    *static_cast<int*>(argument) = 30536;
    return 0;
  }
  return next<int (*)(int, unsigned long, void*)>("ioctl")(fd, request, argument);
}

}  // extern "C"
