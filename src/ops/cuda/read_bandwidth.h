// How fast the device reads its memory.
#pragma once

namespace zipage {

// Bytes a second, the best of some tries over memory larger than the caches; 0 where no memory is free for it. Throws
// DeviceError when there is no device.
double cuda_read_bytes_per_second();

}  // namespace zipage
