/* The FileDescriptorSet of every .proto here, for reflection. */
    .section .rodata
    .global octavo_descriptors
    .global octavo_descriptors_end
octavo_descriptors:
    .incbin "descriptors.pb"
octavo_descriptors_end:
    .byte 0
    .section .note.GNU-stack, "", %progbits
