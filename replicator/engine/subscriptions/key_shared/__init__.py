"""Which Key_Shared consumer gets which key: hashing and the assignment algorithms; pure."""
