/* A list of callbacks. They are called under its lock, so that a removed one is not called
 * again. */
#include "rpc/service.h"

void listeners_init(listener_list *list)
{
    pthread_mutex_init(&list->lock, NULL);
    list->first = NULL;
}

void listeners_destroy(listener_list *list) { pthread_mutex_destroy(&list->lock); }

void listeners_add(listener_list *list, listener *l)
{
    pthread_mutex_lock(&list->lock);
    l->prev = NULL;
    l->next = list->first;
    if (l->next) l->next->prev = l;
    list->first = l;
    pthread_mutex_unlock(&list->lock);
}

void listeners_remove(listener_list *list, listener *l)
{
    pthread_mutex_lock(&list->lock);
    if (l->prev || list->first == l) {
        if (l->prev) l->prev->next = l->next;
        else list->first = l->next;
        if (l->next) l->next->prev = l->prev;
        l->prev = l->next = NULL;
    }
    pthread_mutex_unlock(&list->lock);
}

void listeners_notify(listener_list *list)
{
    pthread_mutex_lock(&list->lock);
    for (listener *l = list->first; l; l = l->next) l->notify(l->ctx);
    pthread_mutex_unlock(&list->lock);
}
